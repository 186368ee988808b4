package localapi

import (
	"net/http"

	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

// IsSecret selects the objects of the store that must not be readable on a disk: Secrets, the tokens of service accounts,
// and the keys of pods' certificates.
func IsSecret(key wire.Key) bool {
	if key.Group == records.Group {
		return key.Resource == records.TokenResource || key.Resource == records.PodCertificateResource
	}
	return key.Group == "" && key.Resource == "secrets"
}

// serveTokenRequest serves serviceaccounts/token: a call to the cloud or, while the cloud cannot be asked, the last answer.
func (s *Server) serveTokenRequest(w http.ResponseWriter, req *http.Request) {
	body, ok := s.readBody(w, req)
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
	reply, err := s.cloud.Call(req.Context(), cloudcall.NewRequest(req, body))
	switch {
	case err != nil, reply.Code >= http.StatusInternalServerError:
		if answer, ok := s.tokens.Last(key); ok {
			responsewriters.WriteObjectNegotiated(scheme.Codecs, negotiation.DefaultEndpointRestrictions,
				authenticationv1.SchemeGroupVersion, w, req, http.StatusCreated, answer, false)
			return
		}
		if err != nil {
			respond.Error(w, req, err)
			return
		}
	case reply.Code < http.StatusMultipleChoices:
		answer, ok := respond.DecodeAs[*authenticationv1.TokenRequest](reply.Body)
		if ok {
			err = s.tokens.Save(req.Context(), key, question, answer)
		}
		if !ok || err != nil {
			// The pod still gets its token; after a reboot without a link it will be missing.
			s.log.Warn("token not kept", zap.Stringer("key", key), zap.Bool("decoded", ok), zap.Error(err))
		}
	}
	respond.Write(w, reply)
}
