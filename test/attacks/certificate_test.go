package attacks_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

const csrPath = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

// servingCSR returns a gateway's request for a serving certificate, modified by change.
func servingCSR(t *testing.T, name string, usages []certificatesv1.KeyUsage, more string, change func(*x509.CertificateRequest)) wire.KubeRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r := &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "system:node:" + stolen, Organization: []string{"system:nodes"}},
		DNSNames: []string{stolen},
	}
	change(r)
	der, err := x509.CreateCertificateRequest(rand.Reader, r, key)
	if err != nil {
		t.Fatal(err)
	}
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), more...)
	body := encodeJSON(t, certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       certificatesv1.CertificateSigningRequestSpec{SignerName: certificatesv1.KubeletServingSignerName, Request: text, Usages: usages},
	})
	return wire.KubeRequest{Method: http.MethodPost, Path: csrPath, ContentType: "application/json", Body: body}
}

// TestCSR_ForeignCertificatesAreRefused requests, as the stolen node, certificates for other names and with more than a kubelet needs,
// repeatedly.
func TestCSR_ForeignCertificatesAreRefused(t *testing.T) {
	th := stealCredentials(t, stolen).mustOpenLink(t, nil)
	th.subscribe(th.inbox(), "")
	server := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	client := append(slices.Clone(server), certificatesv1.UsageClientAuth)
	other := &url.URL{Scheme: "spiffe", Host: victim}
	forms := map[string]struct {
		usages []certificatesv1.KeyUsage
		more   string
		change func(*x509.CertificateRequest)
	}{
		"another's name": {server, "", func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:" + victim }},
		"more groups": {server, "", func(r *x509.CertificateRequest) {
			r.Subject.Organization = append(r.Subject.Organization, "system:masters")
		}},
		"another's host":   {server, "", func(r *x509.CertificateRequest) { r.DNSNames = []string{stolen, victim} }},
		"the API's host":   {server, "", func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes.default.svc"} }},
		"another's tunnel": {server, "", func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{wire.TunnelAddress(victim).AsSlice()} }},
		"a URI":            {server, "", func(r *x509.CertificateRequest) { r.URIs = []*url.URL{other} }},
		"a client's":       {client, "", func(*x509.CertificateRequest) {}},
		"an authority's": {server, "", func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Value: []byte{0x30, 0x03, 0x01, 0x01, 0xff}}}
		}},
		"100 KB": {server, strings.Repeat("x", 100<<10), func(*x509.CertificateRequest) {}},
		"two":    {server, "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", func(*x509.CertificateRequest) {}},
	}
	prefix := newName()
	denied, i := counterDelta(t, "frond_csr_decisions_total", "decision=denied"), 0
	taken, again := map[string]string{}, wire.KubeRequest{}
	checkUnharmed(t, func() {
		for what, form := range forms {
			i++
			name := fmt.Sprintf("%s-%d", prefix, i)
			r := servingCSR(t, name, form.usages, form.more, form.change)
			if reply := th.requestKube(t, r); reply.Code/100 == 2 {
				taken[name], again = what, r
			} else {
				t.Logf("%s: %d", what, reply.Code)
			}
		}
		if reply := th.requestKube(t, again); again.Body != nil && reply.Code/100 == 2 {
			t.Error("the same request is taken twice")
		}
		if len(taken) > 0 {
			awaitCounter(t, "a denial", denied, 1)
		}
		refused := 0
		for n := range 40 {
			if reply := th.requestKube(t, servingCSR(t, fmt.Sprintf("%s-flood-%d", prefix, n), client, "", func(*x509.CertificateRequest) {})); reply.Code == http.StatusTooManyRequests {
				refused++
			}
		}
		if refused == 0 {
			t.Error("40 requests in a row are taken")
		}
		t.Logf("%d were taken and denied, %d of 40 more were refused", len(taken), refused)
	})
	eventually(t, "all are denied", func(ctx context.Context) string {
		list, err := kube.CertificatesV1().CertificateSigningRequests().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, csr := range list.Items {
			switch {
			case !strings.HasPrefix(csr.Name, prefix):
			case len(csr.Status.Certificate) > 0:
				t.Fatalf("%s (%s) has a certificate", csr.Name, taken[csr.Name])
			case !slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
				return c.Type == certificatesv1.CertificateDenied
			}):
				return csr.Name + " waits"
			}
		}
		return ""
	})
}
