package csrs_test

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
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/csrs"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

const edgeLabel = "node-role.kubernetes.io/edge"

// validTemplate returns the request that edgecore makes.
func validTemplate(node string) *x509.CertificateRequest {
	return &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
		DNSNames: []string{node}, IPAddresses: []net.IP{wire.TunnelAddress(node).AsSlice()},
	}
}

func signTemplate(t testing.TB, template *x509.CertificateRequest) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// newRequest returns a node's request as the apiserver stores it.
func newRequest(node string, data []byte) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: data, SignerName: certificatesv1.KubeletServingSignerName,
			Usages:   []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
			Username: "system:node:" + node, Groups: []string{"system:nodes", "system:authenticated"},
		},
	}
}

func TestDecide_OnlyNamesOfTheNode(t *testing.T) {
	uri, _ := url.Parse("spiffe://gw-1")
	wide := netip.MustParsePrefix("192.168.0.0/16")
	for name, tt := range map[string]struct {
		change func(*x509.CertificateRequest)
		spec   func(*certificatesv1.CertificateSigningRequestSpec)
		names  csrs.AllowedNames
		want   string // in the reason of a denial; "" is an approval
	}{
		"what edgecore asks for": {},
		"with an RSA key": {spec: func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Usages = append(s.Usages, certificatesv1.UsageKeyEncipherment)
		}},
		"the cloudcores' host":       {change: func(r *x509.CertificateRequest) { r.DNSNames = append(r.DNSNames, "direct.example.com") }, names: csrs.AllowedNames{DirectHost: "direct.example.com"}},
		"the cloudcores' address":    {change: func(r *x509.CertificateRequest) { r.IPAddresses = append(r.IPAddresses, net.IPv4(10, 0, 0, 9)) }, names: csrs.AllowedNames{DirectHost: "10.0.0.9"}},
		"its own address":            {change: func(r *x509.CertificateRequest) { r.IPAddresses = append(r.IPAddresses, net.IPv4(192, 168, 1, 10)) }, want: "192.168.1.10 is not this node's"},
		"the same in a trusted net":  {change: func(r *x509.CertificateRequest) { r.IPAddresses = append(r.IPAddresses, net.IPv4(192, 168, 1, 10)) }, names: csrs.AllowedNames{Networks: []netip.Prefix{wide}}},
		"another's in a trusted net": {change: func(r *x509.CertificateRequest) { r.IPAddresses = append(r.IPAddresses, net.IPv4(192, 168, 1, 11)) }, names: csrs.AllowedNames{Networks: []netip.Prefix{wide}}, want: "192.168.1.11 is not"},
		"where metrics are":          {change: func(r *x509.CertificateRequest) { r.IPAddresses = append(r.IPAddresses, net.IPv4(192, 168, 9, 9)) }, names: csrs.AllowedNames{Networks: []netip.Prefix{wide}}, want: "192.168.9.9 is not"},
		"another's tunnel":           {change: func(r *x509.CertificateRequest) { r.IPAddresses = []net.IP{wire.TunnelAddress("gw-2").AsSlice()} }, want: "is not this node's"},
		"another's name":             {change: func(r *x509.CertificateRequest) { r.DNSNames = append(r.DNSNames, "gw-2") }, want: `the DNS name "gw-2" is not`},
		"the apiserver's name":       {change: func(r *x509.CertificateRequest) { r.DNSNames = []string{"kubernetes.default.svc"} }, want: "is not this node's"},
		"a wildcard":                 {change: func(r *x509.CertificateRequest) { r.DNSNames = []string{"*"} }, want: "is not this node's"},
		"an empty name":              {change: func(r *x509.CertificateRequest) { r.DNSNames = []string{""} }, want: "is not this node's"},
		"no name":                    {change: func(r *x509.CertificateRequest) { r.DNSNames, r.IPAddresses = nil, nil }, want: "names no host"},
		"a URI":                      {change: func(r *x509.CertificateRequest) { r.URIs = []*url.URL{uri} }, want: "URIs"},
		"an e-mail address":          {change: func(r *x509.CertificateRequest) { r.EmailAddresses = []string{"root@gw-1"} }, want: "e-mail"},
		"another node":               {change: func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:gw-2" }, want: "common name"},
		"an admin":                   {change: func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:masters"} }, want: "organization"},
		"an admin beside":            {change: func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:nodes", "system:masters"} }, want: "organization"},
		"a word more":                {change: func(r *x509.CertificateRequest) { r.Subject.OrganizationalUnit = []string{"x"} }, want: "more than"},
		"to be an authority": {change: func(r *x509.CertificateRequest) {
			r.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}}
		}, want: "extension 2.5.29.19"},
		"to be a client": {spec: func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Usages = append(s.Usages, certificatesv1.UsageClientAuth)
		}, want: "usages"},
		"one usage twice": {spec: func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Usages = append(s.Usages, certificatesv1.UsageServerAuth)
		}, want: "usages"},
		"too few usages": {spec: func(s *certificatesv1.CertificateSigningRequestSpec) { s.Usages = s.Usages[:1] }, want: "usages"},
		"two requests":   {spec: func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = append(s.Request, s.Request...) }, want: "one PEM block"},
		"no request":     {spec: func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = []byte("x") }, want: "one PEM block"},
		"a huge one":     {spec: func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = make([]byte, csrs.MaxRequest+1) }, want: "bytes"},
		"somebody else's key": {spec: func(s *certificatesv1.CertificateSigningRequestSpec) {
			block, _ := pem.Decode(s.Request)
			block.Bytes[len(block.Bytes)-1] ^= 1
			s.Request = pem.EncodeToMemory(block)
		}, want: "signature"},
	} {
		t.Run(name, func(t *testing.T) {
			template := validTemplate("gw-1")
			if tt.change != nil {
				tt.change(template)
			}
			csr := newRequest("gw-1", signTemplate(t, template))
			if tt.spec != nil {
				tt.spec(&csr.Spec)
			}
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gw-1", Labels: map[string]string{edgeLabel: ""}}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: "192.168.1.10"}, {Type: names.AddressMetrics, Address: "192.168.9.9"},
			}}}
			what, why := csrs.Decide(csr, "gw-1", node, tt.names)
			if tt.want == "" && (what != "approved" || why != nil) {
				t.Errorf("%s, %v", what, why)
			}
			if tt.want != "" && (what != "denied" || !strings.Contains(fmt.Sprint(why), tt.want)) {
				t.Errorf("%s, %v; want a denial with %q", what, why, tt.want)
			}
			if what, _ := csrs.Decide(csr, "gw-1", &corev1.Node{}, tt.names); what != "left" {
				t.Errorf("a request of a node that is no gateway is %s", what)
			}
		})
	}
}

// approverEnv is an Approver with exactly the rights of Rules.
type approverEnv struct {
	*testing.T
	cluster *kubetest.Cluster
	admin   kubernetes.Interface
	name    string

	mu     sync.Mutex
	warned []string // guarded by mu
}

func newApproverEnv(t *testing.T) *approverEnv {
	t.Helper()
	cluster := shared.Cluster(t)
	w := &approverEnv{T: t, cluster: cluster, admin: cluster.Client(t), name: cluster.Namespace(t)}
	config := cluster.ConfigWithRules(t, "frond-csrs-test", csrs.Rules())
	objects, err := cache.New(config, cache.Options{})
	if err != nil {
		t.Fatal(err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	warn := func(node, reason, message string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.warned = append(w.warned, node+" "+reason+" "+message)
	}
	approver := csrs.New(csrs.AllowedNames{}, kube, objects, func(node string) bool { return strings.HasPrefix(node, w.name) }, warn,
		prometheus.NewRegistry(), zaptest.NewLogger(t))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return objects.Start(gctx) })
	g.Go(func() error { return approver.Start(gctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("approver: %v", err)
		}
	})
	return w
}

// createGateway creates a Node and returns a client that acts as it.
func (w *approverEnv) createGateway(suffix string, labels map[string]string) (string, kubernetes.Interface) {
	w.Helper()
	name := w.name + "-" + suffix
	if _, err := w.admin.CoreV1().Nodes().Create(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.admin.CoreV1().Nodes().Delete(context.WithoutCancel(w.Context()), name, metav1.DeleteOptions{})
	})
	client, err := kubernetes.NewForConfig(w.cluster.ConfigFor("system:node:"+name, "system:nodes"))
	if err != nil {
		w.Fatal(err)
	}
	return name, client
}

func (w *approverEnv) submitRequest(client kubernetes.Interface, csr *certificatesv1.CertificateSigningRequest) string {
	w.Helper()
	made, err := client.CertificatesV1().CertificateSigningRequests().Create(w.Context(), csr, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return made.Name
}

// conditionsOf returns the condition of a request with its message; "" for none.
func (w *approverEnv) conditionsOf(name string) string {
	w.Helper()
	csr, err := w.admin.CertificatesV1().CertificateSigningRequests().Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	var all []string
	for _, c := range csr.Status.Conditions {
		all = append(all, string(c.Type)+" "+c.Message)
	}
	return strings.Join(all, ", ")
}

func (w *approverEnv) eventuallyDecided(name, want string) {
	w.Helper()
	kit.Succeeds(w, time.Minute, func() error {
		if got := w.conditionsOf(name); !strings.HasPrefix(got, want) {
			return fmt.Errorf("%s is %q, want %q", name, got, want)
		}
		return nil
	})
}

// A stolen gateway requests every certificate that it must not get; its legitimate request, sent last, shows that all
// were processed.
func TestApprover_StolenGatewayGetsOwnNamesOnly(t *testing.T) {
	w := newApproverEnv(t)
	gateway := map[string]string{edgeLabel: ""}
	name, thief := w.createGateway("thief", gateway)
	victim, honestOne := w.createGateway("victim", gateway)
	_, plain := w.createGateway("plain", nil)

	own := newRequest("", signTemplate(t, validTemplate(victim)))
	w.eventuallyDecided(w.submitRequest(honestOne, own), "Approved for names of node "+victim)

	denied := map[string]string{
		"the victim's names": w.submitRequest(thief, newRequest("", signTemplate(t, func() *x509.CertificateRequest { r := validTemplate(name); r.DNSNames = []string{victim}; return r }()))),
	}
	// NodeRestriction refuses this, before the Approver sees it.
	if _, err := thief.CertificatesV1().CertificateSigningRequests().Create(t.Context(), own, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("the victim's own request, sent again by the thief: %v", err)
	}
	elsewhere := newRequest("", signTemplate(t, validTemplate(name)))
	elsewhere.Spec.SignerName = "example.com/serving"
	left := map[string]string{
		"another signer": w.submitRequest(thief, elsewhere),
		"no gateway":     w.submitRequest(plain, newRequest("", signTemplate(t, validTemplate(w.name+"-plain")))),
		"no node":        w.submitRequest(w.admin, newRequest("", signTemplate(t, validTemplate(name)))),
	}
	for what, request := range denied {
		t.Log(what)
		w.eventuallyDecided(request, "Denied the ")
	}
	w.eventuallyDecided(w.submitRequest(thief, newRequest("", signTemplate(t, validTemplate(name)))), "Approved")
	for what, request := range left {
		if got := w.conditionsOf(request); got != "" {
			t.Errorf("%s: %s", what, got)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, said := range w.warned {
		if !strings.HasPrefix(said, name+" CertificateDenied") {
			t.Errorf("people are told %q", said)
		}
	}
	if len(w.warned) != len(denied) {
		t.Errorf("people are told %q", w.warned)
	}
}

func TestApprover_LimitsCertificatesPerNode(t *testing.T) {
	w := newApproverEnv(t)
	name, greedy := w.createGateway("greedy", map[string]string{edgeLabel: ""})
	other, modest := w.createGateway("modest", map[string]string{edgeLabel: ""})
	all := map[string]bool{}
	for range csrs.CertificateBudget + 4 {
		all[w.submitRequest(greedy, newRequest("", signTemplate(t, validTemplate(name))))] = true
	}
	approved := func() (n int) {
		for request := range all {
			if w.conditionsOf(request) != "" {
				n++
			}
		}
		return n
	}
	kit.Succeeds(t, time.Minute, func() error {
		if n := approved(); n != csrs.CertificateBudget {
			return fmt.Errorf("%d approved", n)
		}
		return nil
	})
	w.eventuallyDecided(w.submitRequest(modest, newRequest("", signTemplate(t, validTemplate(other)))), "Approved")
	if n := approved(); n != csrs.CertificateBudget {
		t.Errorf("%d of %d approved, the budget is %d", n, len(all), csrs.CertificateBudget)
	}
}

// A request that a gateway made before its Node was labelled is decided once it is.
func TestApprover_DecidesWhenNodeIsLabelled(t *testing.T) {
	w := newApproverEnv(t)
	name, client := w.createGateway("new", nil)
	asked := w.submitRequest(client, newRequest("", signTemplate(t, validTemplate(name))))
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, edgeLabel)
	if _, err := w.admin.CoreV1().Nodes().Patch(t.Context(), name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallyDecided(asked, "Approved")
}
