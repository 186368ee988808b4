// Package respond writes the local API's answers and errors in Kubernetes' forms.
package respond

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/wire"
)

// Write writes an answer of the cloud.
func Write(w http.ResponseWriter, reply wire.KubeReply) {
	if reply.ContentType != "" {
		w.Header().Set("Content-Type", reply.ContentType)
	}
	w.WriteHeader(reply.Code)
	_, _ = w.Write(reply.Body) // the client has gone away
}

// StatusOf returns the error that a refusal of the cloud is.
func StatusOf(reply wire.KubeReply) error {
	var status metav1.Status
	if err := json.Unmarshal(reply.Body, &status); err == nil && status.Kind == "Status" && status.Code != 0 {
		return &apierrors.StatusError{ErrStatus: status}
	}
	return apierrors.NewGenericServerResponse(reply.Code, "", schema.GroupResource{}, "", string(reply.Body), 0, true)
}

// IsOffline reports whether an error says that the cloud could not be asked.
func IsOffline(err error) bool {
	var u *unreachableError
	return errors.As(err, &u)
}

func (u *unreachableError) Status() metav1.Status { return u.status }

func (u *unreachableError) Unwrap() error { return u.cause }

func (u *unreachableError) Error() string { return u.status.Message }

// Unreachable returns a 503 that says why the cloud could not be asked.
func Unreachable(cause error) error {
	status := apierrors.NewServiceUnavailable(fmt.Sprintf("the gateway does not hold this and cannot ask the cloud: %v", cause)).Status()
	return &unreachableError{cause: cause, status: status}
}

// unreachableError reports that the cloud could not be asked. Clients get a 503 that names the cause.
type unreachableError struct {
	cause  error
	status metav1.Status
}

// DecodeAs decodes an object in any encoding of Kubernetes.
func DecodeAs[T runtime.Object](data []byte) (T, bool) {
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		var none T
		return none, false
	}
	typed, ok := obj.(T)
	return typed, ok
}

// Error writes an error in the form that the client accepts.
func Error(w http.ResponseWriter, req *http.Request, err error) {
	responsewriters.ErrorNegotiated(err, scheme.Codecs, schema.GroupVersion{Version: "v1"}, w, req)
}

// RetryLater returns a 503 that clients retry.
func RetryLater(message string) *apierrors.StatusError {
	err := apierrors.NewServiceUnavailable(message)
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: RetryAfterSeconds}
	return err
}

// RetryAfterSeconds is the Retry-After sent to clients; client-go tries ten times before it returns the error to its caller.
const RetryAfterSeconds = 1
