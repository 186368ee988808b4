package localapi

import (
	"fmt"
	"net/http"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

// serveReview forwards reviews to the cloud. While the cloud cannot be asked, it answers from the keys and roles in the store.
func (s *Server) serveReview(w http.ResponseWriter, req *http.Request) {
	body, ok := s.readBody(w, req)
	if !ok {
		return
	}
	reply, err := s.cloud.Call(req.Context(), cloudcall.NewRequest(req, body))
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
	if err := s.gate.FillReview(req.Context(), obj); err != nil {
		respond.Error(w, req, err)
		return
	}
	gvk := obj.GetObjectKind().GroupVersionKind()
	responsewriters.WriteObjectNegotiated(scheme.Codecs, negotiation.DefaultEndpointRestrictions, gvk.GroupVersion(), w, req,
		http.StatusCreated, obj, false)
}
