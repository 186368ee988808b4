package scopes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

// Keeper keeps what each node may have of what it wants.
type Keeper struct {
	cfg      Config
	registry Registry
	node     Node
	cache    cache.Cache
	judge    *judge
	metrics  *metrics
	log      *zap.Logger
	queue    controllers.Queue[string]
	// roles has room for one word that RBAC changed, which covers all before it is taken.
	roles chan struct{}

	mu sync.Mutex
	// Guarded by mu.

	entries map[string]entry
	// read: the registry has been read once, so a node that is not in entries has none there.
	read bool
}

// New makes a Keeper over a cache that the caller starts. It starts nothing.
func New(cfg Config, kube kubernetes.Interface, objects cache.Cache, meta metadata.Interface, registry Registry, node Node, log *zap.Logger) (*Keeper, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	k := &Keeper{
		cfg: cfg, registry: registry, node: node, cache: objects, log: log, entries: map[string]entry{}, roles: make(chan struct{}, 1),
		queue: controllers.NewQueue[string](retryFirst, retryMost),
	}
	k.metrics = newMetrics(cfg.Metrics, k.countGranted, k.countNodes)
	keep := cfg.JudgeEvery / 2
	k.judge = &judge{
		kube: kube, runs: node.Runs, allowed: cfg.Users, protected: cfg.Protected, keep: keep, metrics: k.metrics, perNode: cfg.PerNode, answers: map[question]answer{},
		doubts: newDoubts(),
		catalog: &catalog{
			discovery: discovery.ToDiscoveryInterfaceWithContext(kube.Discovery()), objects: meta, most: cfg.Objects, keep: keep,
			pages: map[wire.Scope]page{},
		},
	}
	return k, nil
}

const (
	retryFirst = 50 * time.Millisecond
	retryMost  = 30 * time.Second
	// writeTries is how often one request is tried against others that write the same entry.
	writeTries = 5
)

// Granted says what a node was granted. told is false for one that never said what it wants, as far as the registry knows. An
// error means that the registry was not read yet. It does not block.
func (k *Keeper) Granted(node string) (granted []wire.ScopeKind, told bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.read {
		return nil, false, errUnread
	}
	e, told := k.entries[node]
	for _, g := range e.Granted {
		granted = append(granted, g.ScopeKind)
	}
	return granted, told, nil
}

var errUnread = errors.New("the registry of scopes was not read yet")

// Want takes a node's whole wish, judges it, keeps it, and answers. An error that wraps wire.ErrPermanent: it is garbage.
func (k *Keeper) Want(ctx context.Context, node string, request wire.ScopesRequest) (wire.ScopesReply, error) {
	if err := request.Validate(); err != nil {
		return wire.ScopesReply{}, fmt.Errorf("%w: %w", wire.ErrPermanent, err)
	}
	wants := tidy(request.Wants)
	for range writeTries {
		reply, err := k.want(ctx, node, request.Order, wants)
		if !errors.Is(err, wire.ErrConflict) {
			return reply, err
		}
	}
	return wire.ScopesReply{}, fmt.Errorf("scopes of %s: %w", node, wire.ErrConflict)
}

func (k *Keeper) want(ctx context.Context, node string, order uint64, wants []wire.ScopeWant) (wire.ScopesReply, error) {
	last, revision, err := k.load(ctx, node)
	if err != nil {
		return wire.ScopesReply{}, err
	}
	same := sameWants(wants, last.Wants)
	if revision != 0 && order <= last.Order && (order < last.Order || !same) {
		k.metrics.calls.WithLabelValues("stale").Inc()
		return wire.ScopesReply{Order: last.Order}, nil
	}
	verdicts := k.judge.all(ctx, node, wants, last.Granted)
	k.metrics.judged.Inc()
	reply := wire.ScopesReply{Order: order}
	for _, v := range verdicts {
		reply.Verdicts = append(reply.Verdicts, v.users...)
	}
	granted := grants(verdicts, last.Granted)
	if revision != 0 && same && order == last.Order && sameGrants(granted, last.Granted) {
		k.metrics.calls.WithLabelValues("same").Inc()
		k.note(node, last)
		return reply, nil
	}
	if err := k.store(ctx, node, last.next(order, wants, granted, time.Now()), revision); err != nil {
		return wire.ScopesReply{}, err
	}
	k.metrics.calls.WithLabelValues("changed").Inc()
	k.tell(node, verdicts)
	return reply, nil
}

// tell counts and logs what was refused.
func (k *Keeper) tell(node string, verdicts []verdict) {
	for _, v := range verdicts {
		for _, u := range v.users {
			if u.Reason == "" {
				k.log.Info("scope granted", zap.String("node", node), zap.String("scope", u.String()), zap.String("user", u.User))
				continue
			}
			k.metrics.refusals.WithLabelValues(string(u.Reason)).Inc()
			k.log.Info("scope refused", zap.String("node", node), zap.String("scope", u.String()), zap.String("user", u.User),
				zap.String("reason", string(u.Reason)), zap.String("message", u.Message))
		}
	}
}

// load reads a node's entry from the registry. One that cannot be read is as none, and is written over.
func (k *Keeper) load(ctx context.Context, node string) (entry, uint64, error) {
	value, revision, err := k.registry.Get(ctx, node)
	if err != nil {
		return entry{}, 0, fmt.Errorf("registry of %s: %w", node, err)
	}
	if revision == 0 {
		return entry{}, 0, nil
	}
	e, err := decode(value)
	if err != nil {
		k.log.Error("entry not readable, it is written anew", zap.String("node", node), zap.Error(err))
		return entry{}, revision, nil
	}
	return e, revision, nil
}

func (k *Keeper) store(ctx context.Context, node string, e entry, revision uint64) error {
	value, err := e.encode()
	if err != nil {
		return err
	}
	if err := k.registry.Put(ctx, node, value, revision); err != nil {
		return fmt.Errorf("registry of %s: %w", node, err)
	}
	k.note(node, e)
	return nil
}

// note takes an entry over, unless a later one is known, and says if the node may have something else now.
func (k *Keeper) note(node string, e entry) {
	k.mu.Lock()
	last, known := k.entries[node]
	if known && last.Written >= e.Written {
		k.mu.Unlock()
		return
	}
	k.entries[node] = e
	changed := k.read && (!known || !sameGrants(last.Granted, e.Granted))
	k.mu.Unlock()
	if changed {
		k.node.Changed(node)
	}
}

// heard takes what the registry's watch brings.
func (k *Keeper) heard(node string, value []byte) {
	if value == nil {
		k.mu.Lock()
		delete(k.entries, node)
		k.mu.Unlock()
		return
	}
	e, err := decode(value)
	if err != nil {
		k.log.Error("entry not readable", zap.String("node", node), zap.Error(err))
		return
	}
	k.note(node, e)
}

func (k *Keeper) allRead() {
	k.mu.Lock()
	first := !k.read
	k.read = true
	nodes := make([]string, 0, len(k.entries))
	for node := range k.entries {
		nodes = append(nodes, node)
	}
	k.mu.Unlock()
	if first {
		for _, node := range nodes {
			k.node.Changed(node)
		}
	}
}

func (k *Keeper) countGranted() float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := 0
	for node, e := range k.entries {
		if k.node.Owned(node) {
			n += len(e.Granted)
		}
	}
	return float64(n)
}

func (k *Keeper) countNodes() float64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return float64(len(k.entries))
}
