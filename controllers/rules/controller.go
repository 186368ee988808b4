package rules

import (
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/rules"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/rules/delivery"
	"github.com/frond-edge/frond/controllers/rules/resolve"
)

const (
	workers             = 4
	retryBase, retryMax = 100 * time.Millisecond, 30 * time.Second
	requestTimeout      = 10 * time.Second
	// waitingTimeout bounds a question that a worker can do without an answer to.
	waitingTimeout = 2 * time.Second
	// StatusPeriod is the least time between two writes of a rule's status. It is longer where a replica owns so many rules that it would write more than
	// statusesPerSecond.
	StatusPeriod      = 10 * time.Second
	statusesPerSecond = 20
	// unreadRetry is the delay where the cache does not have what was written, or an endpoint, yet.
	unreadRetry = 200 * time.Millisecond
)

// The reasons of the condition Ready, beside those of package resolve.
const (
	reasonPassing     = "Passing"
	reasonFeedNotMade = "FeedNotMade"
)

// Source says which messages a rule gets.
type Source struct {
	// UID is the rule's, Rule its namespace/name.
	UID, Rule   string
	Node, Topic string
	// Since is when the rule was created: it gets no earlier messages.
	Since time.Time
}

// Feeds give the messages of the hub. The methods may be called concurrently, for different rules.
type Feeds interface {
	// Run hands the messages of a rule to r, one after the other, until ctx ends.
	Run(ctx context.Context, s Source, r Reader)
	// Waiting returns the number of messages that were not sent.
	Waiting(ctx context.Context, uid string) (int64, error)
	// Remove forgets a rule.
	Remove(ctx context.Context, uid string) error
}

// Reader is what Feeds call for a rule, one function at a time.
type Reader struct {
	// Send sends a message. What it returns nil for, or an error that wraps wire.ErrPermanent, does not come again.
	Send func(ctx context.Context, m delivery.Message) error
	// Made is called with nil when the hub gives the rule's messages from now on, and with the hub's error when it does not want to.
	Made func(err error)
	// GaveUp is called when a message that Send gave up is stored as a dead letter.
	GaveUp func()
}

// Post sends a message to a URL, as delivery.Post.
type Post func(ctx context.Context, url string, m delivery.Message) error

// Warn records a Warning event about an object. It must not block.
type Warn func(about corev1.ObjectReference, reason, message string)

// Controller carries out the rules that this replica owns.
type Controller struct {
	client           rest.Interface
	feeds            Feeds
	post             Post
	owner            controllers.Ownership
	warn             Warn
	metrics          *metrics
	log              *zap.Logger
	queue            controllers.Queue[types.NamespacedName]
	rules, endpoints toolscache.SharedIndexInformer
	runs             *runs

	mu sync.Mutex
	// written is when the status of each rule was last written; guarded by mu.
	written map[types.NamespacedName]time.Time
	// deleted are the UIDs of rules whose feed must be removed; guarded by mu.
	deleted map[types.NamespacedName][]types.UID
}

// New creates a Controller. client comes from NewClient.
func New(client rest.Interface, feeds Feeds, post Post, owner controllers.Ownership, warn Warn, registry prometheus.Registerer, log *zap.Logger) (*Controller, error) {
	m, err := newMetrics(registry)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		client: client, feeds: feeds, post: post, owner: owner, warn: warn, metrics: m, log: log, runs: newRuns(),
		queue:   controllers.NewQueue[types.NamespacedName](retryBase, retryMax),
		written: map[types.NamespacedName]time.Time{}, deleted: map[types.NamespacedName][]types.UID{},
	}
	if c.rules, err = newInformer(client, rules.RulesResource, &rules.Rule{}, controllers.TypedHandler(c.enqueue, c.onDeleted)); err != nil {
		return nil, err
	}
	byEndpoint := controllers.TypedHandler(c.onEndpoint, c.onEndpoint)
	if c.endpoints, err = newInformer(client, rules.RuleEndpointsResource, &rules.RuleEndpoint{}, byEndpoint); err != nil {
		return nil, err
	}
	return c, nil
}

// Start carries out the rules until ctx ends and then returns nil, after all its requests have ended.
func (c *Controller) Start(ctx context.Context) error {
	defer c.queue.ShutDown()
	var g errgroup.Group
	for _, informer := range []toolscache.SharedIndexInformer{c.rules, c.endpoints} {
		g.Go(func() error {
			informer.RunWithContext(ctx)
			return nil
		})
	}
	g.Go(func() error {
		c.watchOwnership(ctx)
		return nil
	})
	g.Go(func() error {
		controllers.ProcessQueue(ctx, c.queue, workers, c.reconcile)
		c.runs.wait() // their contexts come from reconcile
		return nil
	})
	return g.Wait()
}

func keyOf(o metav1.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
}

func (c *Controller) enqueue(o *rules.Rule) { c.queue.Add(keyOf(o)) }

func (c *Controller) onDeleted(o *rules.Rule) {
	c.removeLater(keyOf(o), o.UID)
	c.enqueue(o)
}

// removeLater lets the next removeDeleted remove a feed.
func (c *Controller) removeLater(key types.NamespacedName, uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleted[key] = append(c.deleted[key], uid)
}

// onEndpoint enqueues the rules that name an endpoint.
func (c *Controller) onEndpoint(o *rules.RuleEndpoint) {
	for rule := range c.namespaceRules(o.Namespace) {
		if rule.Spec.Source == o.Name || rule.Spec.Target == o.Name {
			c.enqueue(rule)
		}
	}
}

// watchOwnership enqueues all rules when this replica comes to own other ones.
func (c *Controller) watchOwnership(ctx context.Context) {
	for {
		changed := c.owner.Changed() // read first, so that no change is missed in between
		for _, found := range c.rules.GetStore().List() {
			if rule, ok := found.(*rules.Rule); ok {
				c.enqueue(rule)
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// OwnerKey is what a rule hashes to an owner by; no Node has such a name.
func OwnerKey(key types.NamespacedName) string { return "rule/" + key.String() }

// reconcile carries out one rule.
func (c *Controller) reconcile(ctx context.Context, key types.NamespacedName) error {
	found, _, err := c.rules.GetStore().GetByKey(key.String())
	if err != nil {
		return err
	}
	rule, exists := found.(*rules.Rule)
	owns := c.owner.Owns(OwnerKey(key))
	if one := c.runs.get(key); one != nil && (!exists || !owns || one.uid != rule.UID || rule.DeletionTimestamp != nil) {
		c.stop(key)
		if exists && rule.DeletionTimestamp != nil { // a finalizer may keep it
			c.removeLater(key, rule.UID)
		}
	}
	if err := c.removeDeleted(ctx, key, owns); err != nil {
		c.log.Warn("feed of a deleted rule not removed, trying again", zap.Stringer("rule", key), zap.Error(err))
		return err
	}
	if !exists || !owns || rule.DeletionTimestamp != nil {
		return nil
	}
	if !c.endpoints.HasSynced() {
		c.queue.AddAfter(key, unreadRetry)
		return nil
	}
	resolved, problem := resolve.Resolve(rule, c.endpointsOf(rule.Namespace))
	if resolved.Feed != (resolve.Feed{}) && resolve.BeyondLimit(rule, c.namespaceRules(rule.Namespace)) {
		resolved.Feed, problem = resolve.Feed{}, resolve.TooManyRules()
		c.queue.AddAfter(key, statusPeriod(c.runs.count())) // an older one may be gone then
	}
	one := c.adjustRun(ctx, rule, resolved.Feed)
	if err := c.updateStatus(ctx, rule, one, resolved, problem); err != nil {
		c.log.Warn("status of a rule not written, trying again", zap.Stringer("rule", key), zap.Error(err))
		return err
	}
	return nil
}

// stop ends the run of a rule that is gone or that another replica owns.
func (c *Controller) stop(key types.NamespacedName) {
	c.runs.remove(key)
	c.metrics.forget(key)
	c.mu.Lock()
	delete(c.written, key)
	c.mu.Unlock()
}

// removeDeleted removes the feeds of deleted rules of a name. Where another replica owns them, it does.
func (c *Controller) removeDeleted(ctx context.Context, key types.NamespacedName, owns bool) error {
	c.mu.Lock()
	uids := c.deleted[key]
	delete(c.deleted, key)
	c.mu.Unlock()
	if !owns {
		return nil
	}
	var failed []error
	for _, uid := range uids {
		if err := c.feeds.Remove(ctx, string(uid)); err != nil {
			failed = append(failed, err)
			c.removeLater(key, uid)
		}
	}
	return errors.Join(failed...)
}

// namespaceRules yields the rules of a namespace.
func (c *Controller) namespaceRules(namespace string) iter.Seq[*rules.Rule] {
	return func(yield func(*rules.Rule) bool) {
		list, err := c.rules.GetIndexer().ByIndex(toolscache.NamespaceIndex, namespace)
		if err != nil {
			c.log.Error("rules of a namespace not found", zap.Error(err)) // the index exists
		}
		for _, found := range list {
			if rule, ok := found.(*rules.Rule); ok && !yield(rule) {
				return
			}
		}
	}
}

func (c *Controller) endpointsOf(namespace string) func(name string) *rules.RuleEndpoint {
	return func(name string) *rules.RuleEndpoint {
		found, _, err := c.endpoints.GetStore().GetByKey(namespace + "/" + name)
		endpoint, ok := found.(*rules.RuleEndpoint)
		if err != nil || !ok {
			return nil
		}
		return endpoint
	}
}

// Routes returns what callers of the REST entry can reach in a namespace, by whichever replica. synced is false while the rules are not all read.
func (c *Controller) Routes(namespace string) (all []resolve.Route, synced bool) {
	if !c.rules.HasSynced() || !c.endpoints.HasSynced() {
		return nil, false
	}
	for rule := range c.namespaceRules(namespace) {
		if rule.DeletionTimestamp != nil {
			continue
		}
		if resolved, problem := resolve.Resolve(rule, c.endpointsOf(namespace)); problem == nil && resolved.Call != (resolve.Call{}) {
			all = append(all, resolve.Route{Rule: rule.Name, Call: resolved.Call})
		}
	}
	return all, true
}

// adjustRun lets the run of a rule pass on what the rule asks for; feed is zero if that is nothing.
func (c *Controller) adjustRun(ctx context.Context, rule *rules.Rule, feed resolve.Feed) *run {
	key := keyOf(rule)
	one := c.runs.get(key)
	if one == nil {
		one = c.runs.add(key, rule.UID, &progress{metrics: c.metrics.of(key), changed: func() { c.queue.Add(key) }})
	}
	if one.feed == feed {
		return one
	}
	sender := delivery.New(func(ctx context.Context, m delivery.Message) error { return c.post(ctx, feed.URL, m) }, one.progress)
	source := Source{UID: string(rule.UID), Rule: key.String(), Node: feed.Node, Topic: feed.Topic, Since: rule.CreationTimestamp.UTC()}
	one.progress.feedBegins(feed != (resolve.Feed{}))
	reader := Reader{Send: sender.Send, Made: one.progress.feedMade, GaveUp: one.progress.gaveUp}
	c.runs.replace(ctx, one, feed, func(ctx context.Context) { c.feeds.Run(ctx, source, reader) })
	c.log.Info("rule changed", zap.Stringer("rule", key), zap.String("node", feed.Node), zap.String("topic", feed.Topic))
	return one
}
