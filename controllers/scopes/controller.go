package scopes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

// GrantController decides and stores which of its wanted scopes each node is granted.
type GrantController struct {
	cfg        Config
	registry   Registry
	node       NodeSource
	cache      cache.Cache
	authorizer *scopeAuthorizer
	metrics    *metrics
	log        *zap.Logger
	queue      controllers.Queue[string]
	// rbacChanged signals that RBAC has changed. Its buffer is one: a signal that was not yet received covers all later changes.
	rbacChanged chan struct{}
	grants      *GrantTable
}

// New creates a GrantController over a cache that the caller starts. It starts nothing. grants is the controller's own,
// which fills it.
func New(cfg Config, kube kubernetes.Interface, objects cache.Cache, meta metadata.Interface, registry Registry, grants *GrantTable, node NodeSource, log *zap.Logger) (*GrantController, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	k := &GrantController{
		cfg: cfg, registry: registry, node: node, cache: objects, log: log, grants: grants, rbacChanged: make(chan struct{}, 1),
		queue: controllers.NewQueue[string](retryBase, retryMax),
	}
	k.metrics = newMetrics(cfg.Metrics, func() float64 { return grants.countGranted(node.IsOwned) }, grants.countNodes)
	keep := cfg.JudgeEvery / 2
	k.authorizer = &scopeAuthorizer{
		kube: kube, runsServiceAccount: node.RunsServiceAccount, allowedUsers: cfg.Users, protected: cfg.Protected, answerTTL: keep, metrics: k.metrics, perNode: cfg.PerNode, answers: map[accessQuery]accessAnswer{},
		undecided: newUndecidedRights(),
		catalog: &resourceCatalog{
			discovery: discovery.ToDiscoveryInterfaceWithContext(kube.Discovery()), objects: meta, maxObjects: cfg.Objects, ttl: keep,
			entries: map[wire.Scope]catalogEntry{},
		},
	}
	return k, nil
}

const (
	retryBase = 50 * time.Millisecond
	retryMax  = 30 * time.Second
	// writeTries is the maximum number of tries for one request against concurrent writers of the same entry.
	writeTries = 5
)

// HandleRequest evaluates a node's complete request, stores the result, and answers. An error that wraps
// wire.ErrPermanent: the request is invalid.
func (k *GrantController) HandleRequest(ctx context.Context, node string, request wire.ScopesRequest) (wire.ScopesReply, error) {
	if err := request.Validate(); err != nil {
		return wire.ScopesReply{}, fmt.Errorf("%w: %w", wire.ErrPermanent, err)
	}
	request.Wants = normalizeWants(request.Wants)
	for range writeTries {
		reply, err := k.applyRequest(ctx, node, request)
		if !errors.Is(err, wire.ErrConflict) {
			return reply, err
		}
	}
	return wire.ScopesReply{}, fmt.Errorf("scopes of %s: %w", node, wire.ErrConflict)
}

func (k *GrantController) applyRequest(ctx context.Context, node string, request wire.ScopesRequest) (wire.ScopesReply, error) {
	last, revision, err := k.loadEntry(ctx, node)
	if err != nil {
		return wire.ScopesReply{}, err
	}
	order, same := request.Order, sameWants(request.Wants, last.Wants) && request.ServicesByNeed == last.ServicesByNeed
	if revision != 0 && order <= last.Order && (order < last.Order || !same) {
		k.metrics.calls.WithLabelValues("stale").Inc()
		// A process before this one may have sent another request with the same order: only a higher order makes the node ask again.
		return wire.ScopesReply{Order: max(last.Order, order+1)}, nil
	}
	verdicts := k.authorizer.evaluateWants(ctx, node, request.Wants, last.Granted)
	k.metrics.judged.Inc()
	reply := wire.ScopesReply{Order: order}
	for _, v := range verdicts {
		reply.Verdicts = append(reply.Verdicts, v.users...)
	}
	granted := grantsFrom(verdicts, last.Granted)
	if revision != 0 && same && order == last.Order && sameGrants(granted, last.Granted) {
		k.metrics.calls.WithLabelValues("same").Inc()
		k.recordEntry(node, last)
		return reply, nil
	}
	if err := k.storeEntry(ctx, node, last.next(request, granted, time.Now()), revision); err != nil {
		return wire.ScopesReply{}, err
	}
	k.metrics.calls.WithLabelValues("changed").Inc()
	k.reportVerdicts(node, verdicts)
	return reply, nil
}

// reportVerdicts counts and logs the refused scopes.
func (k *GrantController) reportVerdicts(node string, verdicts []scopeVerdict) {
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

// loadEntry reads a node's entry from the registry. An entry that cannot be decoded counts as none, and is overwritten.
func (k *GrantController) loadEntry(ctx context.Context, node string) (registryEntry, uint64, error) {
	value, revision, err := k.registry.Get(ctx, node)
	if err != nil {
		return registryEntry{}, 0, fmt.Errorf("registry of %s: %w", node, err)
	}
	if revision == 0 {
		return registryEntry{}, 0, nil
	}
	e, err := decodeEntry(value)
	if err != nil {
		k.log.Error("entry not readable, it is written again", zap.String("node", node), zap.Error(err))
		return registryEntry{}, revision, nil
	}
	return e, revision, nil
}

func (k *GrantController) storeEntry(ctx context.Context, node string, e registryEntry, revision uint64) error {
	value, err := e.encode()
	if err != nil {
		return err
	}
	if err := k.registry.Put(ctx, node, value, revision); err != nil {
		return fmt.Errorf("registry of %s: %w", node, err)
	}
	k.recordEntry(node, e)
	return nil
}

// recordEntry stores an entry in memory, unless a later one is known, and reports a change of the node's grants.
func (k *GrantController) recordEntry(node string, e registryEntry) {
	if k.grants.put(node, e) {
		k.node.OnChange(node)
	}
}

// onEntryChanged handles a change that the registry's watch reports.
func (k *GrantController) onEntryChanged(node string, value []byte) {
	if value == nil {
		k.grants.remove(node)
		return
	}
	e, err := decodeEntry(value)
	if err != nil {
		k.log.Error("entry not readable", zap.String("node", node), zap.Error(err))
		return
	}
	k.recordEntry(node, e)
}

func (k *GrantController) onRegistryLoaded() {
	for _, node := range k.grants.markLoaded() {
		k.node.OnChange(node)
	}
}
