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
	"github.com/frond-edge/frond/cloud/identity/callout"
	"github.com/frond-edge/frond/cloud/identity/links"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/hubtest"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var sharedCluster kubetest.Shared

func TestMain(m *testing.M) { sharedCluster.Verify(m) }

// testTimeout is how long a test waits for an event that takes a second on an idle machine.
const testTimeout = time.Minute

// world is a hub and a Kubernetes, without any cloudcore yet.
type world struct {
	*testing.T
	hub     *hubtest.Hub
	kube    kubernetes.Interface
	objects client.WithWatch
	policy  identity.Policy
}

const cellCount = 4

func newFixture(t *testing.T, servers int) *world {
	t.Helper()
	w := newKubeFixture(t)
	w.hub = hubtest.Start(t, servers, cellCount)
	return w
}

// newKubeFixture creates a world without a hub.
func newKubeFixture(t *testing.T) *world {
	t.Helper()
	c := sharedCluster.Cluster(t)
	objects, err := identity.NewClient(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		T: t, kube: c.Client(t), objects: objects,
		policy: identity.Policy{Cells: cellCount, KeyLifetime: time.Hour, RenewWindow: 24 * time.Hour},
	}
	w.installCRD()
	return w
}

// installCRD installs the CRD.
func (w *world) installCRD() {
	w.Helper()
	definitions, err := crd.Definitions()
	if err != nil {
		w.Fatal(err)
	}
	kinds, err := dynamic.NewForConfig(sharedCluster.Cluster(w.T).Config())
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
	kit.Succeeds(w.T, testTimeout, func() error { return w.objects.List(w.Context(), &api.NodeIdentityList{}) })
}

// identityReplica is the part of a cloudcore that is tested here.
type identityReplica struct {
	registrar *identity.Registrar
	records   *identity.Records
	metrics   *prometheus.Registry
	notifier  *recordingNotifier
	stop      func()
}

// recordingNotifier implements links.Notifier.
type recordingNotifier struct {
	mu                                 sync.Mutex
	closedStreams, revoked, violations map[string]int // guarded by mu
}

func (t *recordingNotifier) CloseStreams(node, _ string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closedStreams[node]++
}

func (t *recordingNotifier) NodeRevoked(node string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.revoked[node]++
}

// RecordViolation is the callback of links.ViolationCounter.
func (t *recordingNotifier) RecordViolation(node, what string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.violations[node+" "+what]++
}

func (t *recordingNotifier) violationCount(node, what string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.violations[node+" "+what]
}

func (t *recordingNotifier) notifiedOf(node string) (cut, revoked int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closedStreams[node], t.revoked[node]
}

// newRegistrar creates a Registrar that is not connected to calls, with records that follow Kubernetes.
func (w *world) newRegistrar() *identity.Registrar {
	w.Helper()
	records := identity.NewRecords(w.objects)
	registry := links.NewRegistry(nil, func(string, bool, []string) {}, zaptest.NewLogger(w.T))
	registrar := identity.NewRegistrar(w.objects, w.kube, records, w.policy, w.trustConfig(), registry, func(string, string) {}, identity.NewMetrics(nil), zaptest.NewLogger(w.T))
	w.startParts(followRecords(records, func(_, _ *identity.Record) {}))
	w.waitClosed(records.Synced(), "the records are not read")
	return registrar
}

func followRecords(records *identity.Records, changed func(was, is *identity.Record)) lifecycle.Part {
	return lifecycle.Part{Name: "records", Start: func(ctx context.Context) error { return records.Follow(ctx, changed) }}
}

func (w *world) waitClosed(done <-chan struct{}, what string) {
	w.Helper()
	kit.Receive(w, what, done)
}

func (w *world) trustConfig() identity.Trust {
	if w.hub == nil {
		return identity.Trust{}
	}
	return identity.Trust{HubURLs: []string{"tls://hub:1"}, HubCAFile: w.hub.CA, ClusterCAFile: w.hub.CA}
}

// startParts runs parts until the returned function is called, or the test ends.
func (w *world) startParts(parts ...lifecycle.Part) (stop func()) {
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

// startReplica starts a replica that is connected to a server of the hub.
func (w *world) startReplica(name string, on int) *identityReplica {
	w.Helper()
	r := &identityReplica{metrics: prometheus.NewRegistry(), notifier: &recordingNotifier{closedStreams: map[string]int{}, revoked: map[string]int{}, violations: map[string]int{}}}
	log := zaptest.NewLogger(w.T).Named(name)
	auth, sys, nc := w.hub.Connect(on, "callout"), w.hub.Connect(on, "kicker"), w.hub.Connect(on, "cloudcore")
	counters, linkMetrics := identity.NewMetrics(r.metrics), links.NewMetrics(r.metrics)
	r.records = identity.NewRecords(w.objects)
	schedule := links.NewSchedule(w.policy, r.records)
	registry := links.NewRegistry(auth, schedule.OnAdmitted, log)
	enforcer := links.NewEnforcer(sys, r.records, registry, schedule, r.notifier, linkMetrics, log)
	settler := identity.NewKeyConfirmer(w.objects, log)
	offences := links.NewViolationCounter(sys, w.policy, r.notifier.RecordViolation, linkMetrics, log)
	answers, err := callout.New(auth, w.hub.Issuer, w.policy, r.records, w.lookupToken, registry, settler.KeySeen, counters, callout.NewMetrics(r.metrics), log)
	if err != nil {
		w.Fatal(err)
	}
	r.registrar = identity.NewRegistrar(w.objects, w.kube, r.records, w.policy, w.trustConfig(), registry, settler.KeySeen, counters, log)
	calls, err := call.NewServer(nc, map[string]call.Handler{
		api.VerbEnrol: r.registrar.Enrol, api.VerbRenew: r.registrar.Renew,
		subject.VerbPing: func(context.Context, string, []byte) (any, error) { return struct{}{}, nil },
	}, metrics.New(nil), log)
	if err != nil {
		w.Fatal(err)
	}
	stop := w.startParts(
		followRecords(r.records, schedule.OnRecordChanged), lifecycle.Part{Name: "links", Start: registry.Start},
		lifecycle.Part{Name: "settler", Start: settler.Start}, lifecycle.Part{Name: "enforcer", Start: enforcer.Start},
		lifecycle.Part{Name: "callout", Start: answers.Start}, lifecycle.Part{Name: "calls", Start: calls.Start},
		lifecycle.Part{Name: "offences", Start: offences.Start},
	)
	r.stop = func() {
		stop()
		for _, nc := range []*nats.Conn{auth, sys, nc} {
			nc.Close()
		}
	}
	w.waitClosed(r.records.Synced(), "the records are not read")
	return r
}

// lookupToken is a callout.TokenLookup.
func (w *world) lookupToken(ctx context.Context, id string) (*api.Token, bool) {
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

// counterSum returns the sum of a counter over the labels with a value.
func (r *identityReplica) counterSum(t *testing.T, name, value string) (sum float64) {
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

// createToken creates a bootstrap token and returns it in its text form.
func (w *world) createToken(id string, annotations map[string]string) string {
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

// tokenUses returns the uses that the token's Secret records.
func (w *world) tokenUses(id string) []string {
	w.Helper()
	token, _ := w.lookupToken(w.Context(), id)
	if token == nil {
		w.Fatalf("token %s is gone", id)
	}
	return token.Used
}

// testGateway is a gateway that has created its key.
type testGateway struct {
	*world
	node    string
	keyPair nkeys.KeyPair
	key     string
	leaf    *server.Server
	// leafName is the leaf's name, if it is not the node's.
	leafName string
	// claimsHub makes the leaf declare itself the hub.
	claimsHub bool
	mu        sync.Mutex
	// token is the one presented, and nonce that of the last dial; guarded by mu.
	token, nonce string
}

func (w *world) newGateway(node, token string) *testGateway {
	w.Helper()
	g := &testGateway{world: w, node: node, token: token}
	g.newKey()
	w.Cleanup(func() {
		_ = w.objects.Delete(context.WithoutCancel(w.Context()), &api.NodeIdentity{ObjectMeta: metav1.ObjectMeta{Name: node}})
	})
	return g
}

// sameCellGateway returns another gateway of the same cell.
func (g *testGateway) sameCellGateway() *testGateway {
	g.Helper()
	for i := 0; ; i++ {
		if name := fmt.Sprintf("%s-%d", g.node, i); subject.CellAccount(name, cellCount) == g.cellAccount() {
			return g.newGateway(name, "")
		}
	}
}

// newKey creates another key, and returns the previous one.
func (g *testGateway) newKey() (before nkeys.KeyPair) {
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
	before, g.keyPair, g.key = g.keyPair, pair, key
	return before
}

func (g *testGateway) showCredential(nonce []byte) (string, []byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	signature, err := g.keyPair.Sign(nonce)
	if err != nil {
		return "", nil, err
	}
	g.nonce = string(nonce)
	shown, err := api.EncodeCredential(api.Credential{Node: g.node, Key: g.key, Token: g.token}, signature)
	return "", shown, err
}

// startLeaf starts the leaf, which dials a server of the hub until it is admitted, and again when it is disconnected.
func (g *testGateway) startLeaf(on int) {
	g.Helper()
	ca, err := os.ReadFile(g.hub.CA)
	if err != nil {
		g.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	o := &server.Options{
		ServerName: cmp.Or(g.leafName, g.node), DontListen: true, NoSigs: true, NoLog: true,
		LeafNode: server.LeafNodeOpts{ReconnectInterval: 100 * time.Millisecond, Remotes: []*server.RemoteLeafOpts{{
			URLs: parseURLs(g.T, "tls://"+g.hub.LeafAddr(on)), TLS: true, TLSHandshakeFirst: true, Hub: g.claimsHub,
			TLSConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, SignatureCB: g.showCredential,
		}}},
	}
	if g.leaf, err = server.NewServer(o); err != nil {
		g.Fatal(err)
	}
	g.leaf.Start()
	g.Cleanup(g.stopLeaf)
}

func (g *testGateway) stopLeaf() {
	g.leaf.Shutdown()
	g.leaf.WaitForShutdown()
}

// linkAccount returns the account in which the hub has placed the gateway's link; "" is none. It finds the link by the
// name that the leaf has chosen.
func (g *testGateway) linkAccount(on int) string {
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

// linkNumber returns the id of the gateway's link; 0 is none.
func (g *testGateway) linkNumber(on int) uint64 {
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

func (g *testGateway) cellAccount() string { return subject.CellAccount(g.node, cellCount) }

// awaitAccount waits until the link is in an account.
func (g *testGateway) awaitAccount(on int, want string) {
	g.Helper()
	kit.Succeeds(g.T, testTimeout, func() error {
		if got := g.linkAccount(on); got != want {
			return fmt.Errorf("the link of %s is in %q, want %q", g.node, got, want)
		}
		return nil
	})
}

// callCloud sends a call over the link, as caller, until it is answered.
func (g *testGateway) callCloud(caller, verb string, request any, reply any) {
	g.Helper()
	nc, err := nats.Connect("", nats.InProcessServer(g.leaf), nats.CustomInboxPrefix(subject.InboxPrefix(caller)))
	if err != nil {
		g.Fatal(err)
	}
	defer nc.Close()
	kit.Succeeds(g.T, testTimeout, func() error { return call.Call(g.Context(), nc, caller, verb, request, reply) })
}

func (g *testGateway) enrolRequest() api.EnrolRequest {
	g.Helper()
	signature, err := g.keyPair.Sign(api.Proof(api.VerbEnrol, g.node, g.key))
	if err != nil {
		g.Fatal(err)
	}
	return api.EnrolRequest{Node: g.node, Key: g.key, Token: g.token, Signature: signature}
}

// renewRequest returns a renewal for the present key, approved by an earlier one.
func (g *testGateway) renewRequest(current nkeys.KeyPair) api.RenewRequest {
	g.Helper()
	proof := api.Proof(api.VerbRenew, g.node, g.key)
	signature, err := g.keyPair.Sign(proof)
	approval, err2 := current.Sign(proof)
	key, err3 := current.PublicKey()
	if err := errors.Join(err, err2, err3); err != nil {
		g.Fatal(err)
	}
	return api.RenewRequest{Node: g.node, Key: g.key, Current: key, Approval: approval, Signature: signature}
}

// readSpec reads the record of the node.
func (g *testGateway) readSpec() api.NodeIdentitySpec {
	g.Helper()
	object := &api.NodeIdentity{}
	if err := g.objects.Get(g.Context(), client.ObjectKey{Name: g.node}, object); err != nil {
		g.Fatal(err)
	}
	return object.Spec
}

// editSpec edits the record as `kubectl edit` would.
func (g *testGateway) editSpec(edit func(*api.NodeIdentitySpec)) {
	g.Helper()
	kit.Succeeds(g.T, testTimeout, func() error {
		object := &api.NodeIdentity{}
		if err := g.objects.Get(g.Context(), client.ObjectKey{Name: g.node}, object); err != nil {
			return err
		}
		edit(&object.Spec)
		return g.objects.Update(g.Context(), object)
	})
}

// revokeNode does the same as `frond node revoke`.
func (g *testGateway) revokeNode() {
	g.Helper()
	g.editSpec(func(s *api.NodeIdentitySpec) {
		s.Revoked = append(s.Revoked, s.Key)
		s.Key, s.Previous, s.RevokedAt = "", "", new(metav1.Now())
	})
}

// writeRecord writes the record of a gateway that joined before.
func (g *testGateway) writeRecord() {
	g.Helper()
	now := metav1.Now()
	object := &api.NodeIdentity{ObjectMeta: metav1.ObjectMeta{Name: g.node}, Spec: api.NodeIdentitySpec{
		Key: g.key, Issued: now, Expires: metav1.NewTime(now.Add(g.policy.KeyLifetime)),
	}}
	if err := g.objects.Create(g.Context(), object); err != nil {
		g.Fatal(err)
	}
}

func waitUntil(t *testing.T, condition func() bool, what string) {
	t.Helper()
	kit.Within(t, testTimeout, what, condition)
}

func deleteNode(w *world, name string) {
	_ = w.kube.CoreV1().Nodes().Delete(context.WithoutCancel(w.Context()), name, metav1.DeleteOptions{}) // -count runs it again
}
