package localapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

// Do simulates the call over the link and the apiserver behind it. Like cloudcore it refuses a path that is not clean, and
// a list that is larger than the link accepts.
func (c *fakeCloud) Do(ctx context.Context, r wire.KubeRequest) (wire.KubeReply, error) {
	c.mu.Lock()
	h := c.handler
	if h != nil {
		c.requests = append(c.requests, r)
	}
	c.mu.Unlock()
	if h == nil {
		return wire.KubeReply{}, wire.ErrOffline
	}
	if path.Clean(r.Path) != r.Path {
		refused := httptest.NewRecorder()
		answerStatus(refused, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return wire.KubeReply{Code: refused.Code, Body: refused.Body.Bytes()}, nil
	}
	target := r.Path
	if r.Query != "" {
		target += "?" + r.Query
	}
	if r.Wait > 0 {
		target += fmt.Sprintf("&watch=true&wait=%d", r.Wait)
	}
	req := httptest.NewRequestWithContext(ctx, r.Method, target, bytes.NewReader(r.Body))
	req.Header.Set("Content-Type", r.ContentType)
	req.Header.Set("Accept", r.Accept)
	req.Header.Set("Authorization", "Bearer "+r.Token)
	w := httptest.NewRecorder()
	h(w, req)
	const whole = 24 << 10
	if r.MaxBytes > 0 && r.Wait == 0 && w.Body.Len() > max(r.MaxBytes/4*3, whole) {
		w = httptest.NewRecorder()
		answerStatus(w, http.StatusRequestEntityTooLarge, metav1.StatusReasonRequestEntityTooLarge)
	}
	return wire.KubeReply{Code: w.Code, ContentType: w.Header().Get("Content-Type"), Body: w.Body.Bytes()}, nil
}

func writeAnswer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func answerStatus(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	writeAnswer(w, int(code), metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: string(reason),
	})
}

func answerNotFound(w http.ResponseWriter, _ *http.Request) {
	answerStatus(w, http.StatusNotFound, metav1.StatusReasonNotFound)
}
