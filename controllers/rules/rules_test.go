package rules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/rules"
	"github.com/frond-edge/frond/api/wire"
	controller "github.com/frond-edge/frond/controllers/rules"
	"github.com/frond-edge/frond/controllers/rules/delivery"
	"github.com/frond-edge/frond/controllers/rules/resolve"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// changeTimeout is how long a change may take on a busy machine: a status is written once in ten seconds.
const changeTimeout = 2 * time.Minute

// ownership is an Ownership of the rules of one namespace, which a test switches on and off.
type ownership struct {
	prefix string

	mu      sync.Mutex
	on      bool          // guarded by mu
	changed chan struct{} // guarded by mu
}

func newOwnership(namespace string, on bool) *ownership {
	return &ownership{prefix: "rule/" + namespace + "/", on: on, changed: make(chan struct{})}
}

func (o *ownership) set(on bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.on = on
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *ownership) Owns(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.on && strings.HasPrefix(name, o.prefix)
}

func (*ownership) Term(string) uint64 { return 1 }
func (*ownership) LeaseValid() bool   { return true }
func (o *ownership) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

// hub is a controller.Feeds of messages in memory: one queue for each topic, one reader at a time for each rule.
type hub struct {
	mu      sync.Mutex
	queues  map[string][]delivery.Message // by topic, guarded by mu
	sources map[string]controller.Source  // by UID, guarded by mu
	readers map[string]int                // by UID, guarded by mu
	removed []string                      // guarded by mu
	// refused is why no feed can be made; guarded by mu.
	refused error
	// away says that the hub answers no questions; guarded by mu.
	away    bool
	changed chan struct{} // guarded by mu
}

func newHub() *hub {
	return &hub{queues: map[string][]delivery.Message{}, sources: map[string]controller.Source{}, readers: map[string]int{}, changed: make(chan struct{})}
}

func (h *hub) publish(topic string, ids ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, id := range ids {
		h.queues[topic] = append(h.queues[topic], delivery.Message{ID: id, Topic: topic, Stored: time.Now()})
	}
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *hub) next(topic string) (m delivery.Message, found bool, changed <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if q := h.queues[topic]; len(q) > 0 {
		return q[0], true, nil
	}
	return m, false, h.changed
}

func (h *hub) Run(ctx context.Context, s controller.Source, r controller.Reader) {
	h.mu.Lock()
	h.sources[s.UID] = s
	h.readers[s.UID]++
	refused := h.refused
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		h.readers[s.UID]--
		h.mu.Unlock()
	}()
	if r.Made(refused); refused != nil {
		<-ctx.Done()
	}
	for ctx.Err() == nil {
		m, found, changed := h.next(s.Topic)
		if !found {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		if err := r.Send(ctx, m); err == nil || errors.Is(err, wire.ErrPermanent) {
			h.mu.Lock()
			h.queues[s.Topic] = h.queues[s.Topic][1:]
			h.mu.Unlock()
		}
	}
}

func (h *hub) Waiting(_ context.Context, uid string) (int64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.away {
		return 0, errors.New("no answer")
	}
	return int64(len(h.queues[h.sources[uid].Topic])), nil
}

func (h *hub) Remove(_ context.Context, uid string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.removed = append(h.removed, uid)
	return nil
}

// reading reports how many readers a rule has.
func (h *hub) reading(uid string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.readers[uid]
}

// env is a namespace of a cluster, and targets: those named dead are away.
type env struct {
	testing.TB
	kinds     dynamic.Interface
	namespace string
	hub       *hub
	// replica is the last one that was started.
	replica *controller.Controller

	mu     sync.Mutex
	sent   []string // URL and id of each accepted message; guarded by mu
	events []string // guarded by mu
}

func newEnv(t testing.TB) *env {
	t.Helper()
	cluster := shared.Cluster(t)
	kinds, err := dynamic.NewForConfig(cluster.Config())
	kit.Must(t, err)
	e := &env{TB: t, kinds: kinds, namespace: cluster.Namespace(t), hub: newHub()}
	all, err := crd.Definitions()
	kit.Must(t, err)
	definitions := kinds.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, data := range all {
		o := &unstructured.Unstructured{}
		kit.Must(t, yaml.Unmarshal(data, &o.Object))
		if !strings.HasSuffix(o.GetName(), "."+rules.Group) {
			continue
		}
		if _, err := definitions.Create(t.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	kit.Succeeds(t, changeTimeout, func() error {
		_, err := e.resource(rules.RulesResource).List(t.Context(), metav1.ListOptions{})
		_, err2 := e.resource(rules.RuleEndpointsResource).List(t.Context(), metav1.ListOptions{})
		return errors.Join(err, err2)
	})
	return e
}

func (e *env) resource(name string) dynamic.ResourceInterface {
	return e.kinds.Resource(rules.GroupVersion().WithResource(name)).Namespace(e.namespace)
}

// post is a controller.Post.
func (e *env) post(_ context.Context, url string, m delivery.Message) error {
	if strings.Contains(url, "dead") {
		return errors.New("connection refused")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sent = append(e.sent, url+" "+m.ID)
	return nil
}

func (e *env) accepted() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.sent)
}

// start runs a replica until the test ends or stop is called.
func (e *env) start(owns *ownership) (stop func()) {
	e.Helper()
	client, err := controller.NewClient(shared.Cluster(e).ConfigWithRules(e, "frond-rules-test", controller.Rules()))
	kit.Must(e, err)
	warn := func(_ corev1.ObjectReference, reason, _ string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.events = append(e.events, reason)
	}
	c, err := controller.New(client, e.hub, e.post, owns, warn, prometheus.NewRegistry(), zaptest.NewLogger(e))
	kit.Must(e, err)
	e.replica = c
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.Context()))
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			e.Errorf("controller: %v", err)
		}
	})
	e.Cleanup(stop)
	return stop
}

func (e *env) create(resource string, object any) *unstructured.Unstructured {
	e.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	kit.Must(e, err)
	o, err := e.resource(resource).Create(e.Context(), &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
	kit.Must(e, err)
	return o
}

func (e *env) createEndpoint(name, kind string) {
	e.Helper()
	e.create(rules.RuleEndpointsResource, &rules.RuleEndpoint{
		TypeMeta:   metav1.TypeMeta{APIVersion: rules.GroupVersion().String(), Kind: "RuleEndpoint"},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: rules.RuleEndpointSpec{RuleEndpointType: kind},
	})
}

// createRule creates a rule from bus to rest, and returns its UID.
func (e *env) createRule(name, topic, url string) (uid string) {
	e.Helper()
	return string(e.create(rules.RulesResource, &rules.Rule{
		TypeMeta:   metav1.TypeMeta{APIVersion: rules.GroupVersion().String(), Kind: rules.RuleKind},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: rules.RuleSpec{
			Source: "bus", SourceResource: map[string]string{"topic": topic, "node_name": "gw-1"},
			Target: "rest", TargetResource: map[string]string{"resource": url},
		},
	}).GetUID())
}

func (e *env) status(name string) rules.RuleStatus {
	e.Helper()
	o, err := e.resource(rules.RulesResource).Get(e.Context(), name, metav1.GetOptions{})
	kit.Must(e, err)
	var rule rules.Rule
	kit.Must(e, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &rule))
	return rule.Status
}

// awaitStatus waits until the status of a rule has a reason, and these numbers.
func (e *env) awaitStatus(name, reason string, delivered, waiting int64) rules.RuleStatus {
	e.Helper()
	var status rules.RuleStatus
	kit.Succeeds(e, changeTimeout, func() error {
		status = e.status(name)
		ready := meta.FindStatusCondition(status.Conditions, rules.ConditionReady)
		if ready == nil || ready.Reason != reason || status.SuccessMessages != delivered || status.WaitingMessages != waiting {
			return fmt.Errorf("rule %s: %+v", name, status)
		}
		return nil
	})
	return status
}

func (e *env) awaitAccepted(want ...string) {
	e.Helper()
	kit.Succeeds(e, changeTimeout, func() error {
		if got := e.accepted(); !slices.Equal(got, want) {
			return fmt.Errorf("accepted %q, want %q", got, want)
		}
		return nil
	})
}

// A rule may come before its endpoints, be changed and be deleted; each takes effect.
func TestController_Lifecycle(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.start(newOwnership(e.namespace, true))
	uid := e.createRule("alarms", "user/a", "http://one")
	topic := func(name string) string { return e.namespace + "/user/" + name }
	e.hub.publish(topic("a"), "1")
	e.awaitStatus("alarms", "EndpointMissing", 0, 0)
	e.createEndpoint("bus", rules.TypeEventBus)
	e.createEndpoint("rest", rules.TypeREST)
	e.awaitAccepted("http://one 1")
	e.awaitStatus("alarms", "Passing", 1, 0)

	rule, err := e.resource(rules.RulesResource).Get(t.Context(), "alarms", metav1.GetOptions{})
	kit.Must(t, err)
	kit.Must(t, unstructured.SetNestedField(rule.Object, "user/b", "spec", "sourceResource", "topic"))
	kit.Must(t, unstructured.SetNestedField(rule.Object, "http://two", "spec", "targetResource", "resource"))
	_, err = e.resource(rules.RulesResource).Update(t.Context(), rule, metav1.UpdateOptions{})
	kit.Must(t, err)
	e.hub.publish(topic("b"), "2", "3")
	e.awaitAccepted("http://one 1", "http://two 2", "http://two 3")
	status := e.awaitStatus("alarms", "Passing", 3, 0)
	if status.ObservedGeneration != 2 || len(status.Errors) != 0 || status.FailMessages != 0 {
		t.Errorf("%+v", status)
	}

	kit.Must(t, e.resource(rules.RulesResource).Delete(t.Context(), "alarms", metav1.DeleteOptions{}))
	kit.Succeeds(t, changeTimeout, func() error {
		e.hub.mu.Lock()
		defer e.hub.mu.Unlock()
		if !slices.Equal(e.hub.removed, []string{uid}) || e.hub.readers[uid] != 0 {
			return fmt.Errorf("removed %q, %d readers", e.hub.removed, e.hub.readers[uid])
		}
		return nil
	})
	e.mu.Lock()
	defer e.mu.Unlock()
	if !slices.Equal(e.events, []string{"EndpointMissing"}) {
		t.Errorf("events %q", e.events)
	}
}

// A target that is away holds the messages of its own rule only. The status has the errors, the number that waits, and since when.
func TestController_DeadTargetDelaysNoOtherRule(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.createEndpoint("bus", rules.TypeEventBus)
	e.createEndpoint("rest", rules.TypeREST)
	for i := range 6 { // more than the controller has workers
		e.createRule(fmt.Sprint("dead-", i), "user/dead", "http://dead")
	}
	e.createRule("good", "user/good", "http://good")
	begun := time.Now().Add(-time.Second)
	e.hub.publish(e.namespace+"/user/dead", "1", "2")
	e.start(newOwnership(e.namespace, true))
	status := e.awaitStatus("dead-5", "Passing", 0, 2)
	kit.Succeeds(t, changeTimeout, func() error {
		if status = e.status("dead-5"); len(status.Errors) == 0 || status.OldestWaiting == nil {
			return fmt.Errorf("%+v", status)
		}
		return nil
	})
	if !strings.HasSuffix(status.Errors[0], " connection refused") || len(status.Errors) > rules.MaxErrors || status.OldestWaiting.Time.Before(begun) {
		t.Errorf("%+v", status)
	}
	e.hub.publish(e.namespace+"/user/good", "3")
	e.awaitAccepted("http://good 3")
	e.awaitStatus("good", "Passing", 1, 0)
}

// A rule that the hub makes no feed for is not Ready, and says why.
func TestController_RefusedFeedIsNotReady(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.hub.refused = errors.New("maximum consumers limit reached")
	e.createEndpoint("bus", rules.TypeEventBus)
	e.createEndpoint("rest", rules.TypeREST)
	e.createRule("alarms", "user/a", "http://one")
	e.start(newOwnership(e.namespace, true))
	status := e.awaitStatus("alarms", "FeedNotMade", 0, 0)
	ready := meta.FindStatusCondition(status.Conditions, rules.ConditionReady)
	if ready.Status != metav1.ConditionFalse || !strings.Contains(ready.Message, "maximum consumers limit reached") {
		t.Errorf("%+v", ready)
	}
}

// A rule that is being deleted, and that a finalizer keeps, sends no more messages and leaves nothing in the hub.
func TestController_FinalizerStopsRule(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.createEndpoint("bus", rules.TypeEventBus)
	e.createEndpoint("rest", rules.TypeREST)
	uid := e.createRule("alarms", "user/a", "http://one")
	finalize := func(list ...string) {
		rule, err := e.resource(rules.RulesResource).Get(t.Context(), "alarms", metav1.GetOptions{})
		kit.Must(t, err)
		rule.SetFinalizers(list)
		_, err = e.resource(rules.RulesResource).Update(t.Context(), rule, metav1.UpdateOptions{})
		kit.Must(t, err)
	}
	finalize("example.com/kept")
	e.start(newOwnership(e.namespace, true))
	e.awaitStatus("alarms", "Passing", 0, 0)
	kit.Must(t, e.resource(rules.RulesResource).Delete(t.Context(), "alarms", metav1.DeleteOptions{}))
	kit.Succeeds(t, changeTimeout, func() error {
		e.hub.mu.Lock()
		defer e.hub.mu.Unlock()
		if !slices.Equal(e.hub.removed, []string{uid}) || e.hub.readers[uid] != 0 {
			return fmt.Errorf("removed %q, %d readers", e.hub.removed, e.hub.readers[uid])
		}
		return nil
	})
	finalize()
}

// While the hub is away, conditions and counts are written all the same.
func TestController_StatusWithoutHub(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.hub.away = true
	e.createEndpoint("bus", rules.TypeEventBus)
	e.createEndpoint("rest", rules.TypeREST)
	e.createRule("alarms", "user/a", "http://one")
	e.createRule("unsent", "other", "http://one")
	e.hub.publish(e.namespace+"/user/a", "1")
	e.start(newOwnership(e.namespace, true))
	e.awaitStatus("unsent", "TopicNotSent", 0, 0)
	e.awaitStatus("alarms", "Passing", 1, 0)
}

// A replica writes no more statuses in a second, however many rules it owns.
func TestStatusPeriod(t *testing.T) {
	for owned, want := range map[int]time.Duration{0: 10 * time.Second, 200: 10 * time.Second, 1_000: 50 * time.Second} {
		if period := controller.StatusPeriodOf(owned); period != want {
			t.Errorf("%d rules: %s, want %s", owned, period, want)
		}
	}
}

// Rules beyond the limit of their namespace are not Ready and have no feed; when an older one is deleted, the next one has.
func TestController_TooManyRules(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.createEndpoint("bus", rules.TypeEventBus)
	e.createEndpoint("rest", rules.TypeREST)
	for i := range resolve.MaxRules {
		e.createRule(fmt.Sprintf("alarms-%03d", i), "user/a", "http://one")
	}
	uid := e.createRule("beyond", "user/b", "http://two")
	e.start(newOwnership(e.namespace, true))
	e.awaitStatus("beyond", "TooManyRules", 0, 0)
	if n := e.hub.reading(uid); n != 0 {
		t.Errorf("%d readers", n)
	}
	kit.Must(t, e.resource(rules.RulesResource).Delete(t.Context(), "alarms-007", metav1.DeleteOptions{}))
	e.awaitStatus("beyond", "Passing", 0, 0)
}

// A rule is read by the replica that owns it. Its numbers go on at another one.
func TestController_OwnershipMoves(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.createEndpoint("bus", rules.TypeEventBus)
	e.createEndpoint("rest", rules.TypeREST)
	uid := e.createRule("alarms", "user/a", "http://one")
	first, second := newOwnership(e.namespace, true), newOwnership(e.namespace, false)
	e.start(first)
	e.start(second)
	e.hub.publish(e.namespace+"/user/a", "1")
	e.awaitStatus("alarms", "Passing", 1, 0)
	if n := e.hub.reading(uid); n != 1 {
		t.Errorf("%d readers", n)
	}
	first.set(false)
	kit.Succeeds(t, changeTimeout, func() error {
		if n := e.hub.reading(uid); n != 0 {
			return fmt.Errorf("%d readers", n)
		}
		return nil
	})
	second.set(true)
	e.hub.publish(e.namespace+"/user/a", "2")
	e.awaitAccepted("http://one 1", "http://one 2")
	e.awaitStatus("alarms", "Passing", 2, 0)
}

// However many messages pass, a status is written at most once in its period.
func TestController_WritesAreBoundedByTime(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.createEndpoint("bus", rules.TypeEventBus)
	e.createEndpoint("rest", rules.TypeREST)
	e.createRule("alarms", "user/a", "http://one")
	e.start(newOwnership(e.namespace, true))
	e.awaitStatus("alarms", "Passing", 0, 0)
	watch, err := e.resource(rules.RulesResource).Watch(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	defer watch.Stop()
	begun := time.Now()
	for i := range 200 {
		e.hub.publish(e.namespace+"/user/a", fmt.Sprint(i))
	}
	e.awaitStatus("alarms", "Passing", 200, 0)
	periods := int(time.Since(begun)/controller.StatusPeriod) + 1
	last, err := e.resource(rules.RulesResource).Get(t.Context(), "alarms", metav1.GetOptions{})
	kit.Must(t, err)
	written := map[string]bool{}
	for event := range watch.ResultChan() {
		o, ok := event.Object.(*unstructured.Unstructured)
		if !ok {
			t.Fatalf("watch: %+v", event.Object)
		}
		if written[o.GetResourceVersion()] = true; o.GetResourceVersion() == last.GetResourceVersion() {
			break
		}
	}
	if n := len(written); n > periods+1 { // the watch begins with the present version
		t.Errorf("%d versions in %d periods", n, periods)
	}
}

// Every replica knows the routes of callers, whoever owns the rules, and only those that can be used.
func TestController_Routes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.start(newOwnership(e.namespace, false))
	e.createEndpoint("rest", rules.TypeREST)
	e.create(rules.RuleEndpointsResource, &rules.RuleEndpoint{
		TypeMeta: metav1.TypeMeta{APIVersion: rules.GroupVersion().String(), Kind: "RuleEndpoint"}, ObjectMeta: metav1.ObjectMeta{Name: "plc"},
		Spec: rules.RuleEndpointSpec{RuleEndpointType: rules.TypeServiceBus, Properties: map[string]string{"service_port": "9000"}},
	})
	for name, source := range map[string]string{"valves": "rest", "later": "missing"} {
		e.create(rules.RulesResource, &rules.Rule{
			TypeMeta: metav1.TypeMeta{APIVersion: rules.GroupVersion().String(), Kind: rules.RuleKind}, ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: rules.RuleSpec{
				Source: source, SourceResource: map[string]string{"path": "/valves/{id}"}, Target: "plc", TargetResource: map[string]string{"path": "/v1"},
			},
		})
	}
	want := []resolve.Route{{Rule: "valves", Call: resolve.Call{Source: "valves/{id}", Port: 9000, Path: "/v1"}}}
	kit.Succeeds(t, changeTimeout, func() error {
		routes, synced := e.replica.Routes(e.namespace)
		if !synced || !slices.Equal(routes, want) {
			return fmt.Errorf("synced %t, routes %+v", synced, routes)
		}
		return nil
	})
	kit.Must(t, e.resource(rules.RulesResource).Delete(t.Context(), "valves", metav1.DeleteOptions{}))
	kit.Succeeds(t, changeTimeout, func() error {
		if routes, _ := e.replica.Routes(e.namespace); len(routes) != 0 {
			return fmt.Errorf("routes %+v", routes)
		}
		return nil
	})
}

// The definitions accept KubeEdge's objects as they are, and refuse what can never work.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	for text, accepted := range map[string]bool{
		"{metadata: {name: a}, spec: {ruleEndpointType: rest, properties: {}}}":                                                                                                  true,
		"{metadata: {name: b}, spec: {ruleEndpointType: eventbus}}":                                                                                                              true,
		"{metadata: {name: c}, spec: {ruleEndpointType: servicebus, properties: {service_port: '65535'}}}":                                                                       true,
		"{metadata: {name: d}, spec: {ruleEndpointType: servicebus, properties: {service_port: '65536'}}}":                                                                       false,
		"{metadata: {name: e}, spec: {ruleEndpointType: servicebus, properties: {service_port: '99999999999'}}}":                                                                 false,
		"{metadata: {name: f}, spec: {ruleEndpointType: servicebus}}":                                                                                                            false,
		"{metadata: {name: g}, spec: {ruleEndpointType: mqtt}}":                                                                                                                  false,
		"{metadata: {name: h}, spec: {source: a, target: b, sourceResource: {path: /x}, targetResource: {topic: z}}, status: {successMessages: 3, failMessages: 0, errors: []}}": true,
		"{metadata: {name: i}, spec: {source: a, target: b, sourceResource: {path: /x}}}":                                                                                        false,
	} {
		o := &unstructured.Unstructured{}
		kit.Must(t, yaml.Unmarshal([]byte(text), &o.Object))
		resource := rules.RuleEndpointsResource
		o.SetKind("RuleEndpoint")
		if strings.Contains(text, "source:") {
			resource = rules.RulesResource
			o.SetKind(rules.RuleKind)
		}
		o.SetAPIVersion(rules.GroupVersion().String())
		_, err := e.resource(resource).Create(t.Context(), o, metav1.CreateOptions{})
		if accepted != (err == nil) || err != nil && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
