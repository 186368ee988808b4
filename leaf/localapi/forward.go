package localapi

import (
	"fmt"
	"io"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/respond"
)

// forwardToCloud forwards a request to the cloud and returns its answer, both unchanged except for versions (see
// versionrewrite.go): any encoding that Kubernetes supports works.
func (s *Server) forwardToCloud(w http.ResponseWriter, req *http.Request) {
	body, ok := s.readBody(w, req)
	if !ok {
		return
	}
	request := cloudcall.NewRequest(req, body)
	s.useCloudVersion(req, &request)
	reply, err := s.cloud.Call(req.Context(), request)
	if err != nil {
		respond.Error(w, req, err)
		return
	}
	s.useLocalVersion(req, &reply)
	respond.Write(w, reply)
}

// readBody reads a request's body, or answers that it is too large.
func (s *Server) readBody(w http.ResponseWriter, req *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, s.cfg.MaxRequestBytes))
	if err != nil {
		respond.Error(w, req, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", s.cfg.MaxRequestBytes)))
		return nil, false
	}
	return body, true
}
