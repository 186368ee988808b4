package identity_test

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	api "github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/internal/hubconf/hubtest"
	"github.com/frond-edge/frond/internal/kubetest"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// limit is how long a test waits for what takes a second on an idle machine.
const limit = time.Minute

// world is a hub and a Kubernetes, without any cloudcore yet.
type world struct {
	*testing.T
	hub     *hubtest.Hub
	kube    kubernetes.Interface
	objects client.WithWatch
	policy  identity.Policy
}

const cells = 4

func newWorld(t *testing.T, servers int) *world {
	t.Helper()
	w := kubeWorld(t)
	w.hub = hubtest.Start(t, servers, cells)
	return w
}

// kubeWorld has no hub.
func kubeWorld(t *testing.T) *world {
	t.Helper()
	c := shared.Cluster(t)
	objects, err := identity.NewClient(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		T: t, kube: c.Client(t), objects: objects,
		policy: identity.Policy{Cells: cells, KeyLifetime: time.Hour, RenewWindow: 24 * time.Hour},
	}
	w.define()
	return w
}

// define installs the kind.
func (w *world) define() {
	w.Helper()
	definitions, err := crd.Definitions()
	if err != nil {
		w.Fatal(err)
	}
	kinds, err := dynamic.NewForConfig(shared.Cluster(w.T).Config())
	if err != nil {
		w.Fatal(err)
	}
	for _, data := range definitions {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &o.Object); err != nil {
			w.Fatal(err)
		}
		all := kinds.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
		if _, err := all.Create(w.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			w.Fatal(err)
		}
	}
	kubetest.Eventually(w.T, limit, func() error { return w.objects.List(w.Context(), &api.NodeIdentityList{}) })
}

// replica is the part of a cloudcore that is tested here.
type replica struct {
	registrar *identity.Registrar
	records   *identity.Records
	enforcer  *identity.Enforcer
	metrics   *prometheus.Registry
	told      *told
	stop      func()
}

// told is identity.Told.
type told struct {
	mu                     sync.Mutex
	cut, revoked, offended map[string]int // guarded by mu
}

func (t *told) Cut(node, _ string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cut[node]++
}

func (t *told) Revoked(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.revoked[node]++
}

// Offended is for identity.Offences.
func (t *told) Offended(node, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.offended[node+" "+what]++
}

func (t *told) offences(node, what string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.offended[node+" "+what]
}

func (t *told) of(node string) (cut, revoked int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cut[node], t.revoked[node]
}

// registrar makes one that answers no calls by itself, with records that follow Kubernetes.
func (w *world) registrar() *identity.Registrar {
	w.Helper()
	records := identity.NewRecords(w.objects, func(_, _ *identity.Record) {})
	links := identity.NewLinks(nil, func(string, bool) {}, zaptest.NewLogger(w.T))
	registrar := identity.NewRegistrar(w.objects, w.kube, records, w.policy, w.trust(), links, func(string, string) {}, identity.NewMetrics(nil), zaptest.NewLogger(w.T))
	w.run(lifecycle.Part{Name: "records", Start: records.Start})
	w.await(records.Synced(), "the records are not read")
	return registrar
}

func (w *world) await(done <-chan struct{}, what string) {
	w.Helper()
	select {
	case <-done:
	case <-time.After(limit):
		w.Fatal(what)
	}
}

func (w *world) trust() identity.Trust {
	if w.hub == nil {
		return identity.Trust{}
	}
	return identity.Trust{HubURLs: []string{"tls://hub:1"}, HubCAFile: w.hub.CA, ClusterCAFile: w.hub.CA}
}

// run runs parts until the returned function is called, or the test ends.
func (w *world) run(parts ...lifecycle.Part) (stop func()) {
	w.Helper()
	ctx, cancel := context.WithCancel(w.Context())
	var g errgroup.Group
	g.Go(func() error { return lifecycle.Run(ctx, zaptest.NewLogger(w.T), parts...) })
	stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			w.Errorf("stopped: %v", err)
		}
	})
	w.Cleanup(stop)
	return stop
}

// replica starts one that is connected to a server of the hub.
func (w *world) replica(name string, on int) *replica {
	w.Helper()
	r := &replica{metrics: prometheus.NewRegistry(), told: &told{cut: map[string]int{}, revoked: map[string]int{}, offended: map[string]int{}}}
	log := zaptest.NewLogger(w.T).Named(name)
	auth, sys, nc := w.hub.Connect(on, "callout"), w.hub.Connect(on, "kicker"), w.hub.Connect(on, "cloudcore")
	metrics := identity.NewMetrics(r.metrics)
	enforcer := identity.NewEnforcer(sys, w.policy, r.told, metrics, log)
	r.enforcer = enforcer
	r.records = identity.NewRecords(w.objects, enforcer.Changed)
	links := identity.NewLinks(auth, enforcer.Admitted, log)
	enforcer.Use(r.records, links)
	settler := identity.NewSettler(w.objects, log)
	offences := identity.NewOffences(sys, w.policy, r.told.Offended, metrics, log)
	callout, err := identity.NewCallout(auth, w.hub.Issuer, w.policy, r.records, w.tokens, links, settler.Seen, metrics, log)
	if err != nil {
		w.Fatal(err)
	}
	r.registrar = identity.NewRegistrar(w.objects, w.kube, r.records, w.policy, w.trust(), links, settler.Seen, metrics, log)
	calls, err := streams.NewCalls(nc, map[string]streams.CallHandler{
		api.VerbEnrol: r.registrar.Enrol, api.VerbRenew: r.registrar.Renew,
		streams.VerbPing: func(context.Context, string, []byte) (any, error) { return struct{}{}, nil },
	}, streams.NewMetrics(nil), log)
	if err != nil {
		w.Fatal(err)
	}
	stop := w.run(
		lifecycle.Part{Name: "records", Start: r.records.Start}, lifecycle.Part{Name: "links", Start: links.Start},
		lifecycle.Part{Name: "settler", Start: settler.Start}, lifecycle.Part{Name: "enforcer", Start: enforcer.Start},
		lifecycle.Part{Name: "callout", Start: callout.Start}, lifecycle.Part{Name: "calls", Start: calls.Start},
		lifecycle.Part{Name: "offences", Start: offences.Start},
	)
	r.stop = func() {
		stop()
		for _, nc := range []*nats.Conn{auth, sys, nc} {
			nc.Close()
		}
	}
	w.await(r.records.Synced(), "the records are not read")
	return r
}

// tokens is identity.Tokens.
func (w *world) tokens(ctx context.Context, id string) (*api.Token, bool) {
	secret, err := w.kube.CoreV1().Secrets(api.TokenNamespace).Get(ctx, api.TokenName(id), metav1.GetOptions{})
	if err != nil {
		return nil, true
	}
	token, err := api.TokenOf(secret)
	if err != nil {
		return nil, true
	}
	return &token, true
}

// counted is the sum of a counter whose label has a value.
func (r *replica) counted(t *testing.T, name, value string) (sum float64) {
	t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if family.GetName() == name && label.GetValue() == value {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

const tokenSecret = "0123456789abcdef"

// token makes a bootstrap token and returns it as people see it.
func (w *world) token(id string, annotations map[string]string) string {
	w.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: api.TokenName(id), Namespace: api.TokenNamespace, Annotations: annotations},
		Type:       api.TokenType,
		StringData: map[string]string{
			"token-id": id, "token-secret": tokenSecret, "auth-extra-groups": api.TokenGroup,
			"usage-bootstrap-authentication": "true", "expiration": time.Now().Add(time.Hour).UTC().Format(time.RFC3339),
		},
	}
	secrets := w.kube.CoreV1().Secrets(api.TokenNamespace)
	if _, err := secrets.Create(w.Context(), secret, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = secrets.Delete(context.WithoutCancel(w.Context()), secret.Name, metav1.DeleteOptions{}) // -count runs it again
	})
	return id + "." + tokenSecret
}

// uses are those that the token's Secret notes.
func (w *world) uses(id string) []string {
	w.Helper()
	token, _ := w.tokens(w.Context(), id)
	if token == nil {
		w.Fatalf("token %s is gone", id)
	}
	return token.Used
}

// gateway is one that has made its key.
type gateway struct {
	*world
	node string
	pair nkeys.KeyPair
	key  string
	leaf *server.Server
	// called is what the leaf calls itself, if not by the node.
	called string
	// claims makes the leaf say that it were the hub.
	claims bool
	mu     sync.Mutex
	// token that is shown, and the nonce of the last dial; guarded by mu.
	token, nonce string
}

func (w *world) gateway(node, token string) *gateway {
	w.Helper()
	g := &gateway{world: w, node: node, token: token}
	g.newKey()
	w.Cleanup(func() {
		_ = w.objects.Delete(context.WithoutCancel(w.Context()), &api.NodeIdentity{ObjectMeta: metav1.ObjectMeta{Name: node}})
	})
	return g
}

// neighbour is another gateway of the same cell.
func (g *gateway) neighbour() *gateway {
	g.Helper()
	for i := 0; ; i++ {
		if name := fmt.Sprintf("%s-%d", g.node, i); streams.CellAccount(name, cells) == g.home() {
			return g.gateway(name, "")
		}
	}
}

// newKey makes another key, and returns the one before.
func (g *gateway) newKey() (before nkeys.KeyPair) {
	g.Helper()
	pair, err := nkeys.CreateUser()
	if err != nil {
		g.Fatal(err)
	}
	key, err := pair.PublicKey()
	if err != nil {
		g.Fatal(err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	before, g.pair, g.key = g.pair, pair, key
	return before
}

func (g *gateway) show(nonce []byte) (string, []byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	signature, err := g.pair.Sign(nonce)
	if err != nil {
		return "", nil, err
	}
	g.nonce = string(nonce)
	shown, err := api.Show(api.Credential{Node: g.node, Key: g.key, Token: g.token}, signature)
	return "", shown, err
}

// dial starts the leaf, which dials a server of the hub until it is let in, and again when it is sent away.
func (g *gateway) dial(on int) {
	g.Helper()
	ca, err := os.ReadFile(g.hub.CA)
	if err != nil {
		g.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	o := &server.Options{
		ServerName: cmp.Or(g.called, g.node), DontListen: true, NoSigs: true, NoLog: true,
		LeafNode: server.LeafNodeOpts{ReconnectInterval: 100 * time.Millisecond, Remotes: []*server.RemoteLeafOpts{{
			URLs: urls(g.T, "tls://"+g.hub.Leaf(on)), TLS: true, TLSHandshakeFirst: true, Hub: g.claims,
			TLSConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, SignatureCB: g.show,
		}}},
	}
	if g.leaf, err = server.NewServer(o); err != nil {
		g.Fatal(err)
	}
	g.leaf.Start()
	g.Cleanup(g.hangUp)
}

func (g *gateway) hangUp() {
	g.leaf.Shutdown()
	g.leaf.WaitForShutdown()
}

// account is where the hub has put the gateway's link; "" is nowhere. It knows it by the name that the leaf gives itself.
func (g *gateway) account(on int) string {
	g.Helper()
	z, err := g.hub.Server(on).Leafz(nil)
	if err != nil {
		g.Fatal(err)
	}
	for _, leaf := range z.Leafs {
		if leaf.Name == g.node {
			return leaf.Account
		}
	}
	return ""
}

// connection is the id of the gateway's link; 0 is none.
func (g *gateway) connection(on int) uint64 {
	g.Helper()
	z, err := g.hub.Server(on).Leafz(nil)
	if err != nil {
		g.Fatal(err)
	}
	for _, leaf := range z.Leafs {
		if leaf.Name == g.node {
			return leaf.ID
		}
	}
	return 0
}

func (g *gateway) home() string { return streams.CellAccount(g.node, cells) }

// awaitAccount waits until the link is there.
func (g *gateway) awaitAccount(on int, want string) {
	g.Helper()
	kubetest.Eventually(g.T, limit, func() error {
		if got := g.account(on); got != want {
			return fmt.Errorf("the link of %s is in %q, want %q", g.node, got, want)
		}
		return nil
	})
}

// call asks the cloud over the link, as caller, until somebody answers.
func (g *gateway) call(caller, verb string, request any, reply any) {
	g.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(g.leaf), nats.CustomInboxPrefix(streams.InboxPrefix(caller)))
	if err != nil {
		g.Fatal(err)
	}
	defer nc.Close()
	kubetest.Eventually(g.T, limit, func() error { return streams.Call(g.Context(), nc, caller, verb, request, reply) })
}

func (g *gateway) enrolment() api.EnrolRequest {
	g.Helper()
	signature, err := g.pair.Sign(api.Proof(api.VerbEnrol, g.node, g.key))
	if err != nil {
		g.Fatal(err)
	}
	return api.EnrolRequest{Node: g.node, Key: g.key, Token: g.token, Signature: signature}
}

// renewal asks for the present key, with the approval of one that was before.
func (g *gateway) renewal(current nkeys.KeyPair) api.RenewRequest {
	g.Helper()
	proof := api.Proof(api.VerbRenew, g.node, g.key)
	signature, err := g.pair.Sign(proof)
	approval, err2 := current.Sign(proof)
	key, err3 := current.PublicKey()
	if err := errors.Join(err, err2, err3); err != nil {
		g.Fatal(err)
	}
	return api.RenewRequest{Node: g.node, Key: g.key, Current: key, Approval: approval, Signature: signature}
}

// spec reads the record of the node.
func (g *gateway) spec() api.NodeIdentitySpec {
	g.Helper()
	object := &api.NodeIdentity{}
	if err := g.objects.Get(g.Context(), client.ObjectKey{Name: g.node}, object); err != nil {
		g.Fatal(err)
	}
	return object.Spec
}

// change edits the record as `kubectl edit` would.
func (g *gateway) change(edit func(*api.NodeIdentitySpec)) {
	g.Helper()
	kubetest.Eventually(g.T, limit, func() error {
		object := &api.NodeIdentity{}
		if err := g.objects.Get(g.Context(), client.ObjectKey{Name: g.node}, object); err != nil {
			return err
		}
		edit(&object.Spec)
		return g.objects.Update(g.Context(), object)
	})
}

// revoke does what `frond node revoke` does.
func (g *gateway) revoke() {
	g.Helper()
	g.change(func(s *api.NodeIdentitySpec) {
		s.Revoked = append(s.Revoked, s.Key)
		s.Key, s.Previous, s.RevokedAt = "", "", new(metav1.Now())
	})
}

// known writes the record of a gateway that joined before.
func (g *gateway) known() {
	g.Helper()
	now := metav1.Now()
	object := &api.NodeIdentity{ObjectMeta: metav1.ObjectMeta{Name: g.node}, Spec: api.NodeIdentitySpec{
		Key: g.key, Issued: now, Expires: metav1.NewTime(now.Add(g.policy.KeyLifetime)),
	}}
	if err := g.objects.Create(g.Context(), object); err != nil {
		g.Fatal(err)
	}
}

func eventually(t *testing.T, condition func() bool, what string) {
	t.Helper()
	kubetest.Eventually(t, limit, func() error {
		if !condition() {
			return errors.New(what)
		}
		return nil
	})
}

func deleteNode(w *world, name string) {
	_ = w.kube.CoreV1().Nodes().Delete(context.WithoutCancel(w.Context()), name, metav1.DeleteOptions{}) // -count runs it again
}
