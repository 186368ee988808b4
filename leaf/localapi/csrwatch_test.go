package localapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/certificate/csr"

	"github.com/frond-edge/frond/test/kit"
)

// csrCloud is a fake cloud with one request, which may be approved and signed.
type csrCloud struct {
	asked atomic.Int32

	mu  sync.Mutex
	csr *certificatesv1.CertificateSigningRequest // guarded by mu; nil: there is none
}

func (s *csrCloud) serveCSR(w http.ResponseWriter, req *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	const path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	switch {
	case req.Method != http.MethodGet || !strings.HasPrefix(req.URL.Path, path):
		answerNotFound(w, req)
	case req.URL.Path == path:
		list := certificatesv1.CertificateSigningRequestList{
			TypeMeta: metav1.TypeMeta{Kind: "CertificateSigningRequestList", APIVersion: "certificates.k8s.io/v1"},
			ListMeta: metav1.ListMeta{ResourceVersion: "7"},
		}
		if s.csr != nil {
			list.Items = append(list.Items, *s.csr)
		}
		writeAnswer(w, http.StatusOK, list)
	case s.csr == nil:
		answerNotFound(w, req)
	default:
		s.asked.Add(1)
		writeAnswer(w, http.StatusOK, s.csr)
	}
}

func (s *csrCloud) updateCSR(change func(*certificatesv1.CertificateSigningRequest)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if change == nil {
		s.csr = nil
		return
	}
	if s.csr == nil {
		s.csr = &certificatesv1.CertificateSigningRequest{
			TypeMeta:   metav1.TypeMeta{Kind: "CertificateSigningRequest", APIVersion: "certificates.k8s.io/v1"},
			ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "u1", ResourceVersion: "0"},
		}
	} else {
		s.csr = s.csr.DeepCopy()
	}
	change(s.csr)
	s.csr.ResourceVersion += "1"
}

func withCondition(kind certificatesv1.RequestConditionType) func(*certificatesv1.CertificateSigningRequest) {
	return func(c *certificatesv1.CertificateSigningRequest) {
		c.Status.Conditions = append(c.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: kind, Status: "True", Reason: "Because"})
	}
}

// A certificate manager waits as with any Kubernetes API: the request is approved while the link is down, and signed later.
func TestCSRWatch_KubeletReceivesCertificate(t *testing.T) {
	g := newGateway(t, true)
	cloud := &csrCloud{}
	cloud.updateCSR(func(*certificatesv1.CertificateSigningRequest) {})
	g.cloud.goOnline(cloud.serveCSR)
	type result struct {
		cert []byte
		err  error
	}
	got := make(chan result, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		cert, err := csr.WaitForCertificate(ctx, g.newClient(true), "csr-1", "u1")
		got <- result{cert, err}
	}()
	kit.Eventually(t, "the request is asked for twice", func() bool { return cloud.asked.Load() > 1 })
	g.cloud.goOffline()
	cloud.updateCSR(withCondition(certificatesv1.CertificateApproved))
	cloud.updateCSR(func(c *certificatesv1.CertificateSigningRequest) { c.Status.Certificate = []byte("signed") })
	g.cloud.goOnline(cloud.serveCSR)
	if r := <-got; r.err != nil || string(r.cert) != "signed" {
		t.Errorf("%q, %v", r.cert, r.err)
	}
}

func TestCSRWatch_ReportsDeletion(t *testing.T) {
	g := newGateway(t, true)
	cloud := &csrCloud{}
	cloud.updateCSR(func(*certificatesv1.CertificateSigningRequest) {})
	g.cloud.goOnline(cloud.serveCSR)
	requests := g.newClient(false).CertificatesV1().CertificateSigningRequests()
	w, err := requests.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=csr-1", ResourceVersion: "7"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	next := func() string {
		t.Helper()
		select {
		case e := <-w.ResultChan():
			if e.Object == nil {
				return "the end"
			}
			if status, ok := e.Object.(*metav1.Status); ok {
				return fmt.Sprint(e.Type, " ", status.Code)
			}
			return fmt.Sprint(e.Type, " ", e.Object.(*certificatesv1.CertificateSigningRequest).ResourceVersion)
		case <-time.After(time.Minute):
			t.Fatal("nothing comes")
			return ""
		}
	}
	steps := []struct {
		do   func()
		want string
	}{
		{func() {}, "ADDED 01"},
		{func() { cloud.updateCSR(withCondition(certificatesv1.CertificateDenied)) }, "MODIFIED 011"},
		{func() { cloud.updateCSR(nil) }, "DELETED 011"},
		{func() {}, "the end"},
	}
	for _, s := range steps {
		s.do()
		if got := next(); got != s.want {
			t.Fatalf("%s, want %s", got, s.want)
		}
	}
	if _, err := requests.Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("a watch of all requests: %v", err)
	}
	if w, err = requests.Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=csr-1", ResourceVersion: "7"}); err != nil {
		t.Fatal(err)
	}
	if got := next(); got != "ERROR 410" {
		t.Errorf("a watch of what is gone: %s", got)
	}
	w.Stop()
	cloud.updateCSR(withCondition(certificatesv1.CertificateDenied))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := csr.WaitForCertificate(ctx, g.newClient(false), "csr-1", "u1"); err == nil || errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "denied") {
		t.Errorf("a denied request: %v", err)
	}
}
