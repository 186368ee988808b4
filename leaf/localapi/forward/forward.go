// Package forward answers requests by the cloud: it sends them as they came, and returns the answers unchanged except for versions.
//
// While the cloud cannot be asked, it answers token requests by the last answer, and reviews by the keys and roles in the store.
package forward

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/auth"
	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
)

// RequestForwarder forwards requests to the cloud. Its methods may be called concurrently.
type RequestForwarder struct {
	maxBytes int64
	store    *store.Store
	cloud    *cloudcall.Client
	tokens   *records.Tokens
	gate     *auth.Gate
	log      *zap.Logger
}

// New creates a RequestForwarder. maxBytes limits a request's body; tokens has the last answers to token requests.
func New(maxBytes int64, st *store.Store, cloud *cloudcall.Client, tokens *records.Tokens, gate *auth.Gate, log *zap.Logger) *RequestForwarder {
	return &RequestForwarder{maxBytes: maxBytes, store: st, cloud: cloud, tokens: tokens, gate: gate, log: log}
}

// Forward forwards a request to the cloud and returns its answer, both unchanged except for versions (see versions.go): any
// encoding that Kubernetes supports works.
func (f *RequestForwarder) Forward(w http.ResponseWriter, req *http.Request) {
	body, ok := f.ReadBody(w, req)
	if !ok {
		return
	}
	call := cloudcall.NewRequest(req, body)
	if p, ok := f.versionsOf(req); ok {
		p.useCloudVersion(&call)
	}
	reply, err := f.cloud.Call(req.Context(), call)
	if err != nil {
		respond.Error(w, req, err)
		return
	}
	if p, ok := f.versionsOf(req); ok {
		p.useLocalVersion(&reply)
	}
	respond.Write(w, reply)
}

// ReadBody reads a request's body, or answers that it is too large.
func (f *RequestForwarder) ReadBody(w http.ResponseWriter, req *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, f.maxBytes))
	if err != nil {
		respond.Error(w, req, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", f.maxBytes)))
		return nil, false
	}
	return body, true
}

// versionsOf returns the versions of the stored object that a request is for.
func (f *RequestForwarder) versionsOf(req *http.Request) (versionPair, bool) {
	info, ok := request.RequestInfoFrom(req.Context())
	if !ok || !info.IsResourceRequest || info.Name == "" {
		return versionPair{}, false
	}
	namespace := info.Namespace
	if info.Resource == "namespaces" {
		namespace = "" // RequestInfo puts a namespace into itself
	}
	e, err := f.store.Get(wire.Key{Group: info.APIGroup, Resource: info.Resource, Namespace: namespace, Name: info.Name})
	if err != nil {
		return versionPair{}, false
	}
	return versionPair{local: kinds.LocalVersion(e.Revision), cloud: e.Version}, e.Version != ""
}

// ServeTokenRequest serves serviceaccounts/token: a call to the cloud or, while the cloud cannot be asked, the last answer.
func (f *RequestForwarder) ServeTokenRequest(w http.ResponseWriter, req *http.Request) {
	body, ok := f.ReadBody(w, req)
	if !ok {
		return
	}
	question, ok := respond.DecodeAs[*authenticationv1.TokenRequest](body)
	if !ok {
		respond.Error(w, req, apierrors.NewBadRequest("the body is not a TokenRequest"))
		return
	}
	info, _ := request.RequestInfoFrom(req.Context())
	key, err := records.TokenKey(info, question)
	if err != nil {
		respond.Error(w, req, err)
		return
	}
	reply, err := f.cloud.Call(req.Context(), cloudcall.NewRequest(req, body))
	switch {
	case err != nil, reply.Code >= http.StatusInternalServerError:
		if answer, ok := f.tokens.Last(key); ok {
			writeCreated(w, req, authenticationv1.SchemeGroupVersion, answer)
			return
		}
		if err != nil {
			respond.Error(w, req, err)
			return
		}
	case reply.Code < http.StatusMultipleChoices:
		answer, ok := respond.DecodeAs[*authenticationv1.TokenRequest](reply.Body)
		if ok {
			err = f.tokens.Save(req.Context(), key, question, answer)
		}
		if !ok || err != nil {
			// The pod still gets its token; after a reboot without a link it will be missing.
			f.log.Warn("token not kept", zap.Stringer("key", key), zap.Bool("decoded", ok), zap.Error(err))
		}
	}
	respond.Write(w, reply)
}

// ServeReview forwards reviews to the cloud. While the cloud cannot be asked, it answers from the keys and roles in the store.
func (f *RequestForwarder) ServeReview(w http.ResponseWriter, req *http.Request) {
	body, ok := f.ReadBody(w, req)
	if !ok {
		return
	}
	reply, err := f.cloud.Call(req.Context(), cloudcall.NewRequest(req, body))
	if err == nil && reply.Code < http.StatusInternalServerError {
		respond.Write(w, reply)
		return
	}
	if err != nil && !respond.IsOffline(err) {
		respond.Error(w, req, err)
		return
	}
	obj, kind, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if err != nil {
		respond.Error(w, req, apierrors.NewBadRequest(err.Error()))
		return
	}
	// The caller was authorized for the path, so the path decides which review is answered.
	info, _ := request.RequestInfoFrom(req.Context())
	if kind.Group != info.APIGroup || kind.Version != info.APIVersion || strings.ToLower(kind.Kind)+"s" != info.Resource {
		respond.Error(w, req, apierrors.NewBadRequest(fmt.Sprintf("the body is a %s, not one of %s", kind.Kind, info.Resource)))
		return
	}
	if local, ok := obj.(*authorizationv1.LocalSubjectAccessReview); ok && local.Namespace != info.Namespace {
		respond.Error(w, req, apierrors.NewBadRequest("metadata.namespace must match the namespace of the request"))
		return
	}
	if err := f.gate.FillReview(req.Context(), obj); err != nil {
		respond.Error(w, req, err)
		return
	}
	writeCreated(w, req, obj.GetObjectKind().GroupVersionKind().GroupVersion(), obj)
}

// writeCreated answers with an object that was made here.
func writeCreated(w http.ResponseWriter, req *http.Request, version schema.GroupVersion, obj runtime.Object) {
	responsewriters.WriteObjectNegotiated(scheme.Codecs, negotiation.DefaultEndpointRestrictions, version, w, req, http.StatusCreated, obj, false)
}
