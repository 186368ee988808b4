package kubecalls

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/time/rate"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/frond-edge/frond/api/wire"
)

// csrRequest returns a request for a certificate as a client encodes it.
func csrRequest(t *testing.T, mediaType, signer string, data []byte) wire.KubeRequest {
	t.Helper()
	info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), mediaType)
	csr := &certificatesv1.CertificateSigningRequest{
		TypeMeta: metav1.TypeMeta{Kind: "CertificateSigningRequest", APIVersion: "certificates.k8s.io/v1"},
		Spec:     certificatesv1.CertificateSigningRequestSpec{SignerName: signer, Request: data},
	}
	var body bytes.Buffer
	if err := info.Serializer.Encode(csr, &body); err != nil {
		t.Fatal(err)
	}
	return wire.KubeRequest{
		Method: http.MethodPost, Path: "/apis/certificates.k8s.io/v1/certificatesigningrequests", ContentType: mediaType, Body: body.Bytes(),
	}
}

func TestCSRLimiter_OnlyServingCertificates(t *testing.T) {
	const serving, client = certificatesv1.KubeletServingSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName
	for _, mediaType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf, runtime.ContentTypeYAML} {
		s := &csrLimiter{limiters: map[string]*rate.Limiter{}}
		if err := s.admitRequest("gw-1", csrRequest(t, mediaType, client, nil)); !apierrors.IsForbidden(err) {
			t.Errorf("%s: a client's certificate: %v", mediaType, err)
		}
		if err := s.admitRequest("gw-1", csrRequest(t, mediaType, serving, make([]byte, 1<<20))); !apierrors.IsRequestEntityTooLargeError(err) {
			t.Errorf("%s: a huge request: %v", mediaType, err)
		}
		for n := range csrBurst + 1 {
			if err := s.admitRequest("gw-1", csrRequest(t, mediaType, serving, nil)); (n == csrBurst) != apierrors.IsTooManyRequests(err) {
				t.Errorf("%s: request %d: %v", mediaType, n, err)
			}
		}
		if err := s.admitRequest("gw-2", csrRequest(t, mediaType, serving, nil)); err != nil {
			t.Errorf("%s: another node: %v", mediaType, err)
		}
	}
	s := &csrLimiter{limiters: map[string]*rate.Limiter{}}
	for name, change := range map[string]func(*wire.KubeRequest){
		"an older version": func(r *wire.KubeRequest) {
			r.Body = bytes.ReplaceAll(r.Body, []byte("certificates.k8s.io/v1"), []byte("certificates.k8s.io/v1beta1"))
		},
		"another kind": func(r *wire.KubeRequest) { r.Body = []byte(`{"kind":"Pod","apiVersion":"v1"}`) },
		"garbage":      func(r *wire.KubeRequest) { r.Body = []byte("x") },
	} {
		req := csrRequest(t, runtime.ContentTypeJSON, serving, nil)
		change(&req)
		if err := s.admitRequest("gw-1", req); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, other := range []wire.KubeRequest{
		{Method: http.MethodGet, Path: "/apis/certificates.k8s.io/v1/certificatesigningrequests"},
		{Method: http.MethodPost, Path: "/api/v1/namespaces/default/pods"},
	} {
		if err := s.admitRequest("gw-1", other); err != nil {
			t.Errorf("%s: %v", other.Path, err)
		}
	}
	reply := denialReply(apierrors.NewTooManyRequests("enough", 30))
	if body := string(reply.Body); reply.Code != http.StatusTooManyRequests || !strings.Contains(body, `"kind":"Status"`) || !strings.Contains(body, "enough") {
		t.Errorf("%d %s", reply.Code, body)
	}
}

// TestRefuseNodeWrite_PodCIDRIsNotAccepted: a Node is registered without a podCIDR, and requests write nothing else of it.
func TestRefuseNodeWrite_PodCIDRIsNotAccepted(t *testing.T) {
	const node, plain = `{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"},"spec":{%s}}`, runtime.ContentTypeJSON
	for name, tt := range map[string]struct {
		method, path, contentType, body string
		refused                         bool
	}{
		"read":                  {http.MethodGet, "/api/v1/nodes/a", "", "", false},
		"list":                  {http.MethodGet, "/api/v1/nodes", "", "", false},
		"registered":            {http.MethodPost, "/api/v1/nodes", plain, fmt.Sprintf(node, `"taints":[{"key":"a","effect":"NoSchedule"}]`), false},
		"with a podCIDR":        {http.MethodPost, "/api/v1/nodes", plain, fmt.Sprintf(node, `"podCIDR":"10.1.0.0/24"`), true},
		"with podCIDRs":         {http.MethodPost, "/api/v1/nodes", plain, fmt.Sprintf(node, `"podCIDRs":["10.1.0.0/24"]`), true},
		"with an escaped one":   {http.MethodPost, "/api/v1/nodes", plain, fmt.Sprintf(node, `"podC\u0049DR":"10.1.0.0/24"`), true},
		"with one and a null":   {http.MethodPost, "/api/v1/nodes", plain, fmt.Sprintf(node, `"podCIDR":"10.1.0.0/24"},"spec":{`), true},
		"in another encoding":   {http.MethodPost, "/api/v1/nodes", runtime.ContentTypeYAML, fmt.Sprintf(node, ""), true},
		"in none":               {http.MethodPost, "/api/v1/nodes", "", fmt.Sprintf(node, ""), true},
		"another kind":          {http.MethodPost, "/api/v1/nodes", plain, `{"apiVersion":"v1","kind":"Pod"}`, true},
		"garbage":               {http.MethodPost, "/api/v1/nodes", plain, "{", true},
		"by its name":           {http.MethodPost, "/api/v1/nodes/a", plain, fmt.Sprintf(node, `"podCIDR":"10.1.0.0/24"`), true},
		"replaced":              {http.MethodPut, "/api/v1/nodes/a", plain, fmt.Sprintf(node, ""), true},
		"patched":               {http.MethodPatch, "/api/v1/nodes/a", "application/merge-patch+json", `{}`, true},
		"its status":            {http.MethodPatch, "/api/v1/nodes/a/status", "application/merge-patch+json", `{"metadata":{"labels":{"site":"another"}}}`, true},
		"another kind of path":  {http.MethodPost, "/api/v1/nodesx", plain, "{}", false},
		"a namespace called so": {http.MethodPost, "/api/v1/namespaces/nodes/pods", plain, "{}", false},
	} {
		t.Run(name, func(t *testing.T) {
			err := refuseNodeWrite(wire.KubeRequest{Method: tt.method, Path: tt.path, ContentType: tt.contentType, Body: []byte(tt.body)})
			if (err != nil) != tt.refused {
				t.Errorf("refused: %v, want %v", err, tt.refused)
			}
		})
	}
}
