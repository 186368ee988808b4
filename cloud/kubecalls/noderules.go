package kubecalls

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/csrs"
)

const (
	// maxCSRBytes bounds the encoded CertificateSigningRequest: base64 enlarges the request in it by a third.
	maxCSRBytes = csrs.MaxRequest*4/3 + 4<<10
	// A node may make csrBurst requests at once and then one every csrInterval, at each replica. A kubelet that is
	// denied retries every 32 s at the soonest.
	csrBurst    = 10
	csrInterval = 30 * time.Second
)

// csrLimiter restricts the certificates that nodes may request from Kubernetes to those that their kubelets serve. A
// client certificate would be a second identity, which works without Frond and outlives a revocation, and in many
// clusters Kubernetes approves it automatically.
type csrLimiter struct {
	mu       sync.Mutex
	limiters map[string]*rate.Limiter // by node; guarded by mu
}

// admitRequest returns an error for a request of a node that is refused, or nil.
func (s *csrLimiter) admitRequest(node string, req wire.KubeRequest) error {
	if req.Method != http.MethodPost || !strings.HasPrefix(req.Path, "/apis/"+certificatesv1.GroupName+"/") ||
		!strings.HasSuffix(req.Path, "/certificatesigningrequests") {
		return nil
	}
	if len(req.Body) > maxCSRBytes {
		return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", maxCSRBytes))
	}
	what := schema.GroupResource{Group: certificatesv1.GroupName, Resource: "certificatesigningrequests"}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(req.Body, nil, nil)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	csr, ok := obj.(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("not a CertificateSigningRequest of %s", certificatesv1.SchemeGroupVersion))
	}
	if csr.Spec.SignerName != certificatesv1.KubeletServingSignerName {
		return apierrors.NewForbidden(what, csr.Name, fmt.Errorf("a gateway gets certificates of the signer %s alone, not of %.80q",
			certificatesv1.KubeletServingSignerName, csr.Spec.SignerName))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.limiters[node]
	if b == nil {
		b = rate.NewLimiter(rate.Every(csrInterval), csrBurst)
		s.limiters[node] = b
	}
	if !b.Allow() {
		return apierrors.NewTooManyRequests("this gateway has asked for too many certificates", int(csrInterval/time.Second))
	}
	return nil
}

// refusalReply returns the answer to a request that is not made: an API status as it is, any other error as a failed request.
func refusalReply(err error) wire.KubeReply {
	if apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		return denialReply(err)
	}
	return wire.KubeReply{Error: "ask the apiserver: " + err.Error()}
}

// refuseNodeWrite returns an error for requests of a node that write a Node, or nil. A node registers itself by a
// request without a podCIDR; it reports all other changes of its Node, and reports carry no podCIDR either. The
// apiserver would let a gateway set one on a Node that has none, and so take the addresses of others. With a write of the
// status, it would let a gateway change its labels, and so come into the group of another site.
func refuseNodeWrite(req wire.KubeRequest) error {
	rest, ok := strings.CutPrefix(req.Path, "/api/v1/nodes")
	name, subresource, _ := strings.Cut(strings.TrimPrefix(rest, "/"), "/")
	if !ok || req.Method == http.MethodGet || rest != "" && rest[0] != '/' {
		return nil
	}
	what := schema.GroupResource{Resource: "nodes"}
	if req.Method != http.MethodPost || subresource != "" {
		return apierrors.NewForbidden(what, name, errors.New("a gateway reports its Node and does not write it"))
	}
	if req.ContentType != runtime.ContentTypeJSON { // otherwise the apiserver might decode something else from it
		return apierrors.NewBadRequest(fmt.Sprintf("a Node is registered in %s, not in %.80q", runtime.ContentTypeJSON, req.ContentType))
	}
	obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(req.Body, nil, nil)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return apierrors.NewBadRequest("not a Node of v1")
	}
	if node.Spec.PodCIDR != "" || len(node.Spec.PodCIDRs) > 0 {
		return apierrors.NewForbidden(what, node.Name, errors.New("a gateway does not choose its podCIDR"))
	}
	return nil
}

// denialReply returns the apiserver's form of answer for a request that is not forwarded to it.
func denialReply(reason error) wire.KubeReply {
	var failure apierrors.APIStatus
	if s, ok := reason.(apierrors.APIStatus); ok {
		failure = s
	} else {
		failure = apierrors.NewBadRequest(reason.Error())
	}
	status := failure.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	body, err := json.Marshal(status)
	if err != nil {
		return wire.KubeReply{Error: reason.Error()}
	}
	return wire.KubeReply{Code: int(status.Code), ContentType: runtime.ContentTypeJSON, Body: body}
}
