// Package forward answers requests by the cloud: it sends them as they came, and returns the answers unchanged except for versions.
//
// While the cloud cannot be asked, it answers token requests by the last answer, and reviews by the keys and roles in the store.
package forward

import (
	"fmt"
	"io"
	"net/http"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

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
