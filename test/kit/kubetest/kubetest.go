// Package kubetest gives a test binary a real Kubernetes control plane: etcd and kube-apiserver, and on request the
// controller manager and the scheduler, each a child process of the test.
//
// One control plane serves a whole test binary; it starts with the first test that calls Shared.Cluster and ends in Shared.Cleanup.
// Tests are isolated by namespaces (Cluster.Namespace) and by their own names of nodes. Authorization is Node and RBAC
// with the NodeRestriction admission, as in production, and each request is in the audit log (Cluster.Audit), so that
// a test can count the requests of its code.
//
// The children are one multi-call binary (tools/kube) from the cache that `make tools` fills, or the one that
// FROND_KUBE_BIN names. A test without it skips, unless REQUIRE names kube. A child dies with the test binary, also when
// that is killed.
package kubetest

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/test/kit"
)

// Options selects the components that run beside the apiserver. The zero value is etcd and kube-apiserver alone.
type Options struct {
	// Controllers are the names for kube-controller-manager's --controllers; nil means that it does not run.
	// "serviceaccount-controller" and "root-ca-certificate-publisher-controller" fill new namespaces.
	Controllers []string
	// ControllerFlags are further flags of kube-controller-manager.
	ControllerFlags []string
	// Scheduler runs kube-scheduler.
	Scheduler bool
}

// Shared is one control plane for a test binary. The zero value with its Options is ready; hold it in a variable of
// the test package and call Verify in TestMain.
type Shared struct {
	Options Options

	once    sync.Once
	cluster *Cluster
	missing error // why there is no binary
	err     error
}

// Cluster returns the control plane and starts it at the first call. It skips the test if the binary is
// missing and fails it if the start fails.
func (s *Shared) Cluster(t testing.TB) *Cluster {
	t.Helper()
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startTimeout) // Cleanup ends it, not this test
		defer cancel()
		var binary string
		if binary, s.missing = findBinary(ctx); s.missing == nil {
			s.cluster, s.err = startCluster(ctx, binary, s.Options)
		}
	})
	if s.missing != nil {
		if isRequired("kube") {
			t.Fatalf("REQUIRE names kube: %v", s.missing)
		}
		t.Skipf("no control plane: %v", s.missing)
	}
	if s.err != nil {
		t.Fatalf("start the control plane: %v", s.err)
	}
	return s.cluster
}

// Cleanup stops the control plane, if it was started. Call it at the end of TestMain.
func (s *Shared) Cleanup() {
	if s.cluster != nil {
		s.cluster.stop()
	}
}

// Verify runs the tests, checks for leaked goroutines, stops the control plane and exits. It is the body of TestMain.
func (s *Shared) Verify(m *testing.M) {
	ignored := []goleak.Option{
		// The children outlive the tests; Cleanup waits for them.
		goleak.IgnoreAnyFunction("github.com/frond-edge/frond/test/kit/kubetest.(*child).wait"),
		// A certificate manager of client-go waits for its next rotation and ignores its context.
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/certificate.(*manager).run"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/certificate.(*manager).run.func1"),
		// client-go keeps one pool of idle connections per process and never closes it.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*http2clientConnReadLoop).run"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*clientConnReadLoop).run"),
	}
	goleak.VerifyTestMain(kit.AwaitGoroutines(m, ignored...), append(ignored, goleak.Cleanup(func(code int) {
		s.Cleanup()
		os.Exit(code)
	}))...)
}

// startTimeout bounds the start: 5 s alone on two cores, about a minute with a compiler beside it.
const startTimeout = 3 * time.Minute

// findBinary returns the multi-call control plane binary.
func findBinary(ctx context.Context) (string, error) {
	path := os.Getenv("FROND_KUBE_BIN")
	if path == "" {
		paths, err := toolchain.Find(ctx, toolchain.Request{Kube: true})
		if err != nil {
			return "", fmt.Errorf("%w (make tools builds it)", err)
		}
		return paths.Kube, nil
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("FROND_KUBE_BIN: %w", err)
	}
	return path, nil
}

func isRequired(what string) bool {
	return slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), what)
}

// Cluster is a running control plane.
type Cluster struct {
	dir      string
	port     int
	pki      *testCA
	children []*child
}

// Config returns the client configuration of an administrator (system:masters) without client-side rate limits.
func (c *Cluster) Config() *rest.Config {
	return c.ConfigFor("kubernetes-admin", "system:masters")
}

// ConfigFor returns the client configuration of a user with the given groups, authenticated by a client certificate.
func (c *Cluster) ConfigFor(user string, groups ...string) *rest.Config {
	cert, key := c.pki.clientCert(user, groups)
	return &rest.Config{
		Host:            fmt.Sprintf("https://127.0.0.1:%d", c.port),
		TLSClientConfig: rest.TLSClientConfig{CAData: c.pki.caPEM, CertData: cert, KeyData: key},
		QPS:             -1,
	}
}

// Client returns a typed client of the administrator.
func (c *Cluster) Client(t testing.TB) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		t.Fatalf("client: %v", err)
	}
	return client
}

// Namespace creates a namespace with a unique name for this test and deletes it afterwards.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	client := c.Client(t)
	ns, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create namespace: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete namespace %s: %v", ns.Name, err)
		}
	})
	return ns.Name
}

// ConfigWithRules returns the client configuration of a user with exactly the given rights, so that a test also verifies the role.
func (c *Cluster) ConfigWithRules(t testing.TB, user string, rules []rbacv1.PolicyRule) *rest.Config {
	t.Helper()
	client := c.Client(t).RbacV1()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}
	if _, err := client.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("role of %s: %v", user, err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := client.ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("role of %s: %v", user, err)
	}
	config := c.ConfigFor(user)
	config.UserAgent = user
	return config
}

// Eventually polls a condition until it holds, and fails the test after the limit with the condition's last error.
func Eventually(t testing.TB, limit time.Duration, condition func() error) {
	t.Helper()
	kit.Succeeds(t, limit, condition)
}

// auditPolicy records each request once, at its response, without bodies.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules: [{level: Metadata}]
`

// AuditEntry is one line of the audit log.
type AuditEntry struct {
	Verb      string    `json:"verb"`
	URI       string    `json:"requestURI"`
	UserAgent string    `json:"userAgent"`
	Time      time.Time `json:"requestReceivedTimestamp"`
	User      struct {
		Username string `json:"username"`
	} `json:"user"`
	Impersonated struct {
		Username string   `json:"username"`
		Groups   []string `json:"groups"`
	} `json:"impersonatedUser"`
	Object struct {
		Resource    string `json:"resource"`
		Namespace   string `json:"namespace"`
		Name        string `json:"name"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	Response struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// Audit returns the requests that came after the given time and that keep accepts. A watch appears when it ends.
func (c *Cluster) Audit(t testing.TB, after time.Time, keep func(AuditEntry) bool) []AuditEntry {
	t.Helper()
	f, err := os.Open(c.path("audit.log"))
	if err != nil {
		t.Fatalf("open the audit log: %v", err)
	}
	defer func() { _ = f.Close() }()
	var found []AuditEntry
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return found // the end, possibly a partial line that is being written
		}
		var r AuditEntry
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatalf("audit log: %v in %.200q", err, line)
		}
		if r.Time.After(after) && keep(r) {
			found = append(found, r)
		}
	}
}
