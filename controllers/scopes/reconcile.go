package scopes

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/podcache"
)

const (
	// workers is the number of nodes that are evaluated concurrently.
	workers = 4
	// rbacSettle is how long changes of RBAC are batched: a role and its binding come together.
	rbacSettle = 500 * time.Millisecond
	// sweepTick is the granularity with which evaluations are spread over Config.JudgeEvery.
	sweepTick = time.Second
	// forgetAfter is how long the entry of a node without a Node object is kept after it was last written.
	forgetAfter = time.Hour
	// watchPause is the pause after a failed watch of the registry.
	watchPause = time.Second
)

// Start maintains the entries and evaluates them again until ctx ends, and then returns nil. The registry's watch and
// the cache must be usable.
func (k *GrantController) Start(ctx context.Context) error {
	defer k.queue.ShutDown()
	stop, err := k.startInformers(ctx)
	defer stop()
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return k.watchRegistry(gctx) })
	g.Go(func() error { return k.sweepNodes(gctx) })
	g.Go(func() error { return k.handleRBACChanges(gctx) })
	controllers.ProcessQueue(gctx, k.queue, workers, k.processNode)
	return g.Wait()
}

// watchRegistry watches the registry. A watch may end silently with its server; the registry handles that.
func (k *GrantController) watchRegistry(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := k.registry.Watch(ctx, k.onEntryChanged, k.onRegistryLoaded); err != nil && ctx.Err() == nil {
			k.log.Warn("registry not watched, trying again", zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchPause):
		}
	}
	return nil
}

// startInformers subscribes to RBAC objects and pods. The returned function is never nil.
func (k *GrantController) startInformers(ctx context.Context) (stop func(), err error) {
	var undo []func()
	stop = func() {
		for _, f := range undo {
			f()
		}
	}
	add := func(object client.Object, handler toolscache.ResourceEventHandler) error {
		informer, err := k.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("follow %T: %w", object, err)
		}
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return fmt.Errorf("follow %T: %w", object, err)
		}
		undo = append(undo, func() { _ = informer.RemoveEventHandler(registration) }) // fails only for the handler of another informer
		return nil
	}
	roles := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { k.signalRBACChange() },
		UpdateFunc: func(any, any) { k.signalRBACChange() },
		DeleteFunc: func(any) { k.signalRBACChange() },
	}
	pods := toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.onPodChanged(nil, o) },
		UpdateFunc: k.onPodChanged,
		DeleteFunc: func(o any) { k.onPodChanged(o, nil) },
	}
	for _, object := range []client.Object{&rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}, &rbacv1.Role{}, &rbacv1.RoleBinding{}} {
		if err := add(object, roles); err != nil {
			return stop, err
		}
	}
	return stop, add(&corev1.Pod{}, pods)
}

func (k *GrantController) signalRBACChange() {
	select {
	case k.rbacChanged <- struct{}{}:
	default:
	}
}

// handleRBACChanges evaluates all nodes again after RBAC has changed.
func (k *GrantController) handleRBACChanges(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.rbacChanged:
		}
		select { // changes that come together are evaluated once
		case <-ctx.Done():
			return nil
		case <-time.After(rbacSettle):
		}
		select {
		case <-k.rbacChanged:
		default:
		}
		k.authorizer.forgetAnswers()
		for _, node := range k.ownedNodes() {
			k.queue.Add(node)
		}
	}
}

// onPodChanged evaluates a node again when a service account may have begun or ceased to run there.
func (k *GrantController) onPodChanged(before, after any) {
	was, is := accountOfPod(before), accountOfPod(after)
	if was == is {
		return
	}
	for _, l := range []podAccount{was, is} {
		if _, wants := k.grants.get(l.node); wants {
			k.queue.Add(l.node)
		}
	}
}

// podAccount is the node and service account of a running pod; the zero value: none.
type podAccount struct{ node, namespace, account string }

func accountOfPod(object any) podAccount {
	if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	pod, ok := podcache.Of(object)
	if !ok || pod.Node() == "" || pod.Ended() {
		return podAccount{}
	}
	return podAccount{pod.Node(), pod.Namespace(), pod.Account()}
}

// ownedNodes returns this replica's nodes that have an entry, sorted.
func (k *GrantController) ownedNodes() []string {
	return k.grants.nodesOf(k.node.IsOwned)
}

// sweepNodes evaluates each node again every Config.JudgeEvery, spread over that time.
func (k *GrantController) sweepNodes(ctx context.Context) error {
	tick := min(sweepTick, k.cfg.JudgeEvery)
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	var left []string
	share := 0
	for {
		if len(left) == 0 {
			left = k.ownedNodes()
			share = 1 + len(left)*int(tick)/int(k.cfg.JudgeEvery)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		n := min(share, len(left))
		for _, node := range left[:n] {
			k.queue.Add(node)
		}
		left = left[n:]
	}
}

func (k *GrantController) processNode(ctx context.Context, node string) error {
	err := k.reevaluateNode(ctx, node)
	if err != nil && ctx.Err() == nil && !errors.Is(err, wire.ErrConflict) {
		k.metrics.errors.Inc()
		k.log.Warn("scopes not judged again, trying later", zap.String("node", node), zap.Error(err))
	}
	return err
}

// reevaluateNode evaluates a node's scopes again, if this replica owns the node.
func (k *GrantController) reevaluateNode(ctx context.Context, node string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("panic: %v\n%s", r, debug.Stack())
		}
	}()
	last, ok := k.grants.get(node)
	if !ok || !k.node.IsOwned(node) {
		return nil
	}
	if !k.node.Exists(node) && time.Since(time.UnixMilli(last.Written)) > forgetAfter {
		_, revision, err := k.loadEntry(ctx, node)
		if err != nil || revision == 0 {
			return err
		}
		k.authorizer.undecided.retainOnly(node, nil)
		return k.registry.Delete(ctx, node, revision)
	}
	verdicts := k.authorizer.evaluateWants(ctx, node, last.Wants, last.Granted)
	k.metrics.judged.Inc()
	granted := grantsFrom(verdicts, last.Granted)
	if sameGrants(granted, last.Granted) {
		return nil
	}
	now, revision, err := k.loadEntry(ctx, node)
	if err != nil {
		return err
	}
	if revision == 0 || now.Written != last.Written {
		if revision != 0 {
			k.recordEntry(node, now)
		}
		return fmt.Errorf("%w: the registry of %s has another entry", wire.ErrConflict, node)
	}
	if err := k.storeEntry(ctx, node, now.next(now.request(), granted, time.Now()), revision); err != nil {
		return err
	}
	k.reportVerdicts(node, verdicts)
	return nil
}
