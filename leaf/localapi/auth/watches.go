package auth

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/endpoints/filters"

	"github.com/frond-edge/frond/leaf/store"
)

const (
	// reauthorizeInterval is how often open watches are authorized again if no role has changed.
	reauthorizeInterval = time.Minute
	// reauthorizePause is the pause between two rounds: roles mostly change several at a time.
	reauthorizePause = 200 * time.Millisecond
)

// Watches holds the open watches of programs other than the node. A request is authorized when it arrives. A watch
// lasts an hour, so it is authorized again whenever the roles in the store have changed.
type Watches struct {
	store *store.Store
	gate  *Gate
	// onRevoke is called for each watch that ends.
	onRevoke func()

	mu      sync.Mutex // guards watches
	watches map[*openWatch]struct{}
}

type openWatch struct {
	ctx    context.Context //nolint:containedctx // of the request: it says who asks, and for what
	cancel context.CancelFunc
}

// NewWatches creates Watches without any. onRevoke is called for each watch that ends since roles no longer allow it.
func NewWatches(st *store.Store, gate *Gate, onRevoke func()) *Watches {
	return &Watches{store: st, gate: gate, onRevoke: onRevoke, watches: map[*openWatch]struct{}{}}
}

// Register adds the watch of a request. The request is served with the returned context, until leave.
func (o *Watches) Register(ctx context.Context) (watched context.Context, leave func()) {
	w := &openWatch{}
	w.ctx, w.cancel = context.WithCancel(ctx)
	o.mu.Lock()
	o.watches[w] = struct{}{}
	o.mu.Unlock()
	return w.ctx, func() {
		o.mu.Lock()
		delete(o.watches, w)
		o.mu.Unlock()
		w.cancel()
	}
}

func (o *Watches) all() []*openWatch {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Collect(maps.Keys(o.watches))
}

// Run ends open watches that roles no longer allow, until ctx ends. The program's next request gets the reason.
func (o *Watches) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1) // one token: some role has changed
	var follows sync.WaitGroup
	defer follows.Wait()
	for _, resource := range []string{"roles", "rolebindings", "clusterroles", "clusterrolebindings"} {
		follows.Go(func() { o.watchRoles(ctx, resource, changed) })
	}
	often := time.NewTicker(reauthorizeInterval)
	defer often.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-often.C:
		}
		for _, w := range o.all() {
			o.reauthorize(w)
		}
		pause.Reset(reauthorizePause)
	}
}

// watchRoles signals changed for each change of one kind.
func (o *Watches) watchRoles(ctx context.Context, resource string, changed chan<- struct{}) {
	tell := func() {
		select {
		case changed <- struct{}{}:
		default: // already signalled
		}
	}
	for ctx.Err() == nil {
		roles, err := o.store.Watch(rbacv1.GroupName, resource, "", o.store.Revision())
		if err != nil {
			continue // the revision has advanced meanwhile
		}
		tell() // changes between two watches
		for err == nil {
			if _, err = roles.Next(ctx); err == nil || errors.Is(err, store.ErrGone) {
				tell()
			}
		}
		roles.Stop()
	}
}

// reauthorize ends a watch that is definitely refused; while the decision is not possible, the watch stays open.
func (o *Watches) reauthorize(w *openWatch) {
	attributes, err := filters.GetAuthorizerAttributes(w.ctx)
	if err != nil || w.ctx.Err() != nil {
		return
	}
	if allowed, _, err := o.gate.authorizer.Authorize(w.ctx, attributes); allowed || err != nil {
		return
	}
	w.cancel()
	o.onRevoke()
	o.gate.log.Info("a watch ended: roles no longer allow it", zap.String("user", attributes.GetUser().GetName()), zap.String("path", attributes.GetPath()))
}
