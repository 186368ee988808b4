package cloud

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/kube"
	"github.com/frond-edge/frond/cloud/membership"
	"github.com/frond-edge/frond/cloud/scoperegistry"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/controllers/scopes"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// settleTimeout bounds the waits of these tests, which share two cores with others.
const settleTimeout = 60 * time.Second

var widgetResource = schema.GroupVersionResource{Group: "frond.test", Version: "v1", Resource: "widgets"}

// scopeFixture is a cluster with a custom kind, a hub, and nodes whose side of the protocol the test plays.
type scopeFixture struct {
	*testing.T
	cluster *kubetest.Cluster
	kube    kubernetes.Interface
	dynamic dynamic.Interface
	hub     *server.Server
	ns      string

	mu       sync.Mutex
	messages map[string][]wire.Message // guarded by mu; all that was ever published, by node
}

func newScopeFixture(t *testing.T) *scopeFixture {
	t.Helper()
	c := &scopeFixture{T: t, cluster: sharedCluster.Cluster(t), hub: streamstest.Hub(t), messages: map[string][]wire.Message{}}
	c.kube, c.ns = c.cluster.Client(t), c.cluster.Namespace(t)
	var err error
	if c.dynamic, err = dynamic.NewForConfig(c.cluster.Config()); err != nil {
		t.Fatal(err)
	}
	c.defineWidgets()
	nc := streamstest.Connect(t, c.hub)
	sub, err := nc.Subscribe(string(subject.Desired)+".>", c.recordMessage)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *scopeFixture) recordMessage(m *nats.Msg) {
	_, node, key, err := subject.Parse(m.Subject)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.messages[node] = append(c.messages[node], wire.Message{Node: node, Key: key, Op: wire.Operation(m.Header.Get("Frond-Op")), Object: m.Data})
}

// publishedFor returns all messages that were ever published to a node for the keys that a scope covers, and its
// marker, in order.
func (c *scopeFixture) publishedFor(node string, of wire.Scope) []wire.Message {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(c.messages[node]), func(m wire.Message) bool { return !of.Covers(m.Key) && m.Key != of.Marker() })
}

// defineWidgets creates a CRD; tests of one binary share it.
func (c *scopeFixture) defineWidgets() {
	c.Helper()
	crd := &unstructured.Unstructured{}
	definition := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.frond.test"},
		"spec":{"group":"frond.test","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}},
			{"name":"v1beta1","served":true,"storage":false,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
	if err := json.Unmarshal([]byte(definition), crd); err != nil {
		c.Fatal(err)
	}
	crds := c.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := crds.Create(c.Context(), crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		c.Fatal(err)
	}
	kit.Succeeds(c, settleTimeout, func() error {
		_, err := c.dynamic.Resource(widgetResource).Namespace(c.ns).List(c.Context(), metav1.ListOptions{})
		return err
	})
}

func (c *scopeFixture) putWidget(name, size string) {
	c.Helper()
	w := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "frond.test/v1", "kind": "Widget", "metadata": map[string]any{"name": name},
		"data": map[string]any{"metadata": map[string]any{"size": size}}, // a trap for code that searches the first "metadata"
	}}
	api := c.dynamic.Resource(widgetResource).Namespace(c.ns)
	_, err := api.Create(c.Context(), w, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		w.SetResourceVersion("")
		_, err = api.Patch(c.Context(), name, "application/merge-patch+json", fmt.Appendf(nil, `{"data":{"metadata":{"size":%q}}}`, size), metav1.PatchOptions{})
	}
	if err != nil {
		c.Fatal(err)
	}
}

func (c *scopeFixture) deleteWidget(name string) {
	c.Helper()
	if err := c.dynamic.Resource(widgetResource).Namespace(c.ns).Delete(c.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
}

// createNode creates an edge node of the test's own.
func (c *scopeFixture) createNode(suffix string) string {
	c.Helper()
	name := c.ns + "-" + suffix
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.LabelEdge: ""}}}
	if _, err := c.kube.CoreV1().Nodes().Create(c.Context(), node, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		_ = c.kube.CoreV1().Nodes().Delete(context.WithoutCancel(c.Context()), name, metav1.DeleteOptions{})
	})
	return name
}

// createPod creates a pod with a service account on a node, and returns the account's user name.
func (c *scopeFixture) createPod(name, node, account string) string {
	c.Helper()
	_, err := c.kube.CoreV1().ServiceAccounts(c.ns).Create(c.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		c.Fatal(err)
	}
	off := false
	_, err = c.kube.CoreV1().Pods(c.ns).Create(c.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: node, ServiceAccountName: account, AutomountServiceAccountToken: &off, Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
	return "system:serviceaccount:" + c.ns + ":" + account
}

// grantAccess lets an account list and watch a resource in the namespace, by a role and a binding of the same name.
func (c *scopeFixture) grantAccess(name, account, group, resource string) {
	c.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{"get", "list", "watch"}},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: c.ns, Name: account}},
	}
	if _, err := c.kube.RbacV1().Roles(c.ns).Create(c.Context(), role, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	if _, err := c.kube.RbacV1().RoleBindings(c.ns).Create(c.Context(), binding, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
}

func (c *scopeFixture) revokeAccess(name string) {
	c.Helper()
	if err := c.kube.RbacV1().RoleBindings(c.ns).Delete(c.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
}

// scopeReplica is the part of a cloudcore that serves scopes.
type scopeReplica struct {
	nc      *nats.Conn
	members *membership.Members
	engine  *desired.Engine
	keeper  *scopes.GrantController
	stop    func()
}

// cloudRules returns the rights that operations/scopes.md lists, and those for the test's own kind.
func cloudRules() []rbacv1.PolicyRule {
	return slices.Concat(kinds.Rules(), scopes.Rules(), kube.Rules(), []rbacv1.PolicyRule{
		{APIGroups: []string{widgetResource.Group}, Resources: []string{widgetResource.Resource}, Verbs: []string{"list", "watch"}},
	})
}

func (c *scopeFixture) startCloudcore(id string, cfg scopes.Config) *scopeReplica {
	c.Helper()
	rest := c.cluster.ConfigWithRules(c, "frond-scopes-test", cloudRules())
	log := zaptest.NewLogger(c, zaptest.WrapOptions(zap.IncreaseLevel(zap.WarnLevel)))
	p := &scopeReplica{nc: streamstest.Connect(c, c.hub)}
	js, err := jetstream.New(p.nc)
	if err != nil {
		c.Fatal(err)
	}
	bucket := func(name string) jetstream.KeyValue {
		kv, err := js.KeyValue(c.Context(), name)
		if err != nil {
			c.Fatal(err)
		}
		return kv
	}
	objects, err := podcache.New(rest)
	if err != nil {
		c.Fatal(err)
	}
	own, err := kubernetes.NewForConfig(rest)
	if err != nil {
		c.Fatal(err)
	}
	meta, err := metadata.NewForConfig(rest)
	if err != nil {
		c.Fatal(err)
	}
	metrics := metrics.New(nil)
	publisher, err := publish.NewPublisher(p.nc, subject.Layout{}, metrics)
	if err != nil {
		c.Fatal(err)
	}
	p.members = membership.New(id, bucket(subject.MembersBucket), nil, log)
	grants := scopes.NewGrantTable()
	p.engine, err = desired.New(desired.Config{
		NoServices: true, Scopes: grants.Granted, TombstoneAge: time.Minute, Guard: desired.Guard{Share: 0.5, Minimum: 5},
	}, objects, publisher, p.members, log)
	if err != nil {
		c.Fatal(err)
	}
	p.keeper, err = newScopeController(cfg, own, meta, objects, scoperegistry.New(bucket(subject.RegistryBucket)), grants, p.members.Owns, p.engine, log)
	if err != nil {
		c.Fatal(err)
	}
	calls, err := call.NewServer(p.nc, map[string]call.Handler{subject.VerbScopes: scopesHandler(p.keeper)}, metrics, log)
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Context()))
	var g errgroup.Group
	for _, start := range []func(context.Context) error{p.members.Start, objects.Start, p.engine.Start} {
		g.Go(func() error { return start(ctx) })
	}
	p.stop = sync.OnceFunc(func() {
		cancel()
		_ = g.Wait() // one whose connection was cut ends with that error
	})
	c.Cleanup(p.stop)
	kit.Receive(c, "the engine is ready", p.engine.Ready())
	for _, start := range []func(context.Context) error{p.keeper.Start, calls.Start} {
		g.Go(func() error { return start(ctx) })
	}
	return p
}

// requestScopes sends the request of a node's agent.
func (c *scopeFixture) requestScopes(node string, order uint64, wants ...wire.ScopeWant) wire.ScopesReply {
	c.Helper()
	nc := streamstest.Node(c, c.hub, node)
	defer nc.Close()
	var reply wire.ScopesReply
	kit.Succeeds(c, settleTimeout, func() error { // as an agent, repeated while there is no answer or a want is undecided
		if err := call.Call(c.Context(), nc, node, subject.VerbScopes, wire.ScopesRequest{Order: order, Wants: wants}, &reply); err != nil {
			return err
		}
		for _, v := range reply.Verdicts {
			if v.Reason == wire.ScopeUnjudged {
				return fmt.Errorf("%+v", v)
			}
		}
		return nil
	})
	return reply
}

// newScopeWant returns a want for one user.
func newScopeWant(scope wire.Scope, users ...string) wire.ScopeWant {
	return wire.ScopeWant{Scope: scope, Users: users}
}

func (c *scopeFixture) widgetScope() wire.Scope {
	return wire.Scope{Group: widgetResource.Group, Version: widgetResource.Version, Resource: widgetResource.Resource, Namespace: c.ns}
}

// heldMessages returns what the stream holds for a node.
func (c *scopeFixture) heldMessages(p *scopeReplica, node string) map[wire.Key]wire.Message {
	c.Helper()
	publisher, err := publish.NewPublisher(p.nc, subject.Layout{}, metrics.New(nil))
	if err != nil {
		c.Fatal(err)
	}
	held, err := publisher.Held(c.Context(), node)
	if err != nil {
		c.Fatal(err)
	}
	return held
}

// waitForScope waits until the stream holds exactly these objects of a scope for a node, and its marker or not.
func (c *scopeFixture) waitForScope(p *scopeReplica, node string, scope wire.Scope, marked bool, names ...string) {
	c.Helper()
	names = slices.Sorted(slices.Values(names))
	kit.Succeeds(c, settleTimeout, func() error {
		var found []string
		held := c.heldMessages(p, node)
		for key, m := range held {
			if scope.Covers(key) && m.Op == wire.Apply {
				found = append(found, key.Name)
			}
		}
		slices.Sort(found)
		if mark := held[scope.Marker()]; !slices.Equal(found, names) || (mark.Op == wire.Apply) != marked {
			return fmt.Errorf("%s has %q, marker %q; want %q, marked %v", node, found, mark.Op, names, marked)
		}
		return nil
	})
}
