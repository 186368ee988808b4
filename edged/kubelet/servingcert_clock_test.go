package kubelet_test

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/edged/kubelet"
	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/test/kit"
)

// csrSigner approves and signs a node's requests, for a year of its own time, and counts.
type csrSigner struct {
	kube   kubernetes.Interface
	node   string
	now    func() time.Time
	signed int
}

// signPending signs the pending requests, and returns the total so far.
func (s *csrSigner) signPending(t *testing.T) int {
	t.Helper()
	api := s.kube.CertificatesV1().CertificateSigningRequests()
	list, err := api.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		csr := &list.Items[i]
		block, _ := pem.Decode(csr.Spec.Request)
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if request.Subject.CommonName != "system:node:"+s.node || len(csr.Status.Certificate) > 0 {
			continue
		}
		csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
			{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test", LastUpdateTime: metav1.Now()},
		}
		if csr, err = api.UpdateApproval(t.Context(), csr.Name, csr, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		csr.Status.Certificate = s.signRequest(t, request)
		if _, err := api.UpdateStatus(t.Context(), csr, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.signed++
	}
	return s.signed
}

func (s *csrSigner) signRequest(t *testing.T, request *x509.CertificateRequest) []byte {
	t.Helper()
	key, err := mint.NewKey()
	kit.Must(t, err)
	template := x509.Certificate{
		Subject: request.Subject, DNSNames: request.DNSNames, IPAddresses: request.IPAddresses,
		NotBefore: s.now().Add(-5 * time.Minute), NotAfter: s.now().AddDate(1, 0, 0),
	}
	der, err := (&mint.Authority{Cert: &template, Key: key}).Sign(template, request.PublicKey)
	kit.Must(t, err)
	return mint.EncodeCertificate(der)
}

// signUntil signs until want requests were signed, or the limit has passed.
func (s *csrSigner) signUntil(t *testing.T, want int, limit time.Duration) {
	t.Helper()
	for deadline := time.Now().Add(limit); s.signPending(t) < want && time.Now().Before(deadline); {
		<-time.After(100 * time.Millisecond)
	}
}

// The machine's clock is ten years ahead of the cloud's: by it, each certificate has expired on arrival. One is requested,
// and the next only when it is due by the cloud's time, or the node has another name.
func TestServingCert_ClockAheadAsksOnce(t *testing.T) {
	kube := shared.Cluster(t).Client(t)
	var now atomic.Pointer[time.Time]
	set := func(at time.Time) { now.Store(&at) }
	began := time.Now().AddDate(-10, 0, 0)
	set(began)
	var more atomic.Bool
	s := &csrSigner{kube: kube, node: "clock-1", now: func() time.Time { return *now.Load() }}
	cfg := kubelet.ServingCertConfig{Node: s.node, Dir: t.TempDir(), Now: s.now, NodeNames: func() []string {
		if more.Load() {
			return []string{s.node, "10.1.2.3", "direct.example.com"}
		}
		return []string{s.node, "10.1.2.3"}
	}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	config, _, err := kubelet.ServeCert(ctx, cfg, "", kube, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		what   string
		change func()
	}{
		{"at first", func() {}},
		{"another name", func() { more.Store(true) }},
		{"due by the cloud's time", func() { set(began.AddDate(0, 9, 0)) }},
	} {
		step.change()
		s.signUntil(t, i+1, waitTimeout)
		s.signUntil(t, i+2, 5*time.Second) // client-go would send a request every second
		if s.signed != i+1 {
			t.Fatalf("%s: %d certificates were asked for, %d are needed", step.what, s.signed, i+1)
		}
		if shown := shownCertificate(t, config, s.node); shown == nil || shown.NotAfter.After(s.now().AddDate(1, 0, 1)) || len(shown.IPAddresses) != 1 {
			t.Errorf("%s: callers are shown %+v", step.what, shown)
		}
	}
}
