package kindsync

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired/kinds"
)

// Some kinds that a kubelet requests are not in every Kubernetes: they came with a later version, or a feature gate
// disables them. Each is probed by a request for the resource itself, so that a 404 is the apiserver's statement that
// it serves no such kind. While it is served, it is retained in Informers. What the stream holds of a kind that is
// not synced stays as it is: nothing about it is known, and "not known" is never "absent". wire.DeliveredKinds tells
// nodes which of these kinds they get.

const (
	// probeTimeout bounds one probe: a list of one object.
	probeTimeout = 10 * time.Second
	// probeMisses is how many probes in a row must find a synced kind missing before it is dropped: while several
	// apiservers are upgraded one after the other, their answers differ.
	probeMisses = 5
	// optionalWait is how long Await waits for the optional kinds, which should take as long as the others. A kind
	// that is not synced by then begins later.
	optionalWait = 30 * time.Second
)

// Prober finds out which optional kinds the apiserver serves. Its methods may be called concurrently.
type Prober struct {
	probe     func(context.Context, schema.GroupVersionResource) error
	every     time.Duration
	informers *Informers
	log       *zap.Logger

	mu sync.Mutex
	// Guarded by mu. changed is closed and replaced when the state of a kind changes.
	kinds   map[kinds.ID]*probedKind
	changed chan struct{}
}

// probedKind is what is known of one optional kind. Guarded by Prober.mu, except for the description, which never changes.
type probedKind struct {
	kinds.Optional
	// version is the one that is served, "" for none; probed says that a probe has given an answer. absence is the
	// reason for none.
	version string
	probed  bool
	absence wire.KindAbsence
	misses  int
	// synced: its objects are in the cache, and the follower has seen them.
	synced bool
}

// Await waits until each optional kind is synced or known to be absent, for 30 s at most.
func (p *Prober) Await(ctx context.Context) {
	if p.probe == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, optionalWait)
	defer cancel()
	for {
		p.mu.Lock()
		changed, waiting := p.changed, []string{}
		for id, o := range p.kinds {
			if !o.probed || o.version != "" && !o.synced {
				waiting = append(waiting, id.Resource)
			}
		}
		p.mu.Unlock()
		if len(waiting) == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			p.log.Warn("kinds are not followed yet, nodes keep what they have of them", zap.Strings("resources", waiting))
			return
		}
	}
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context, follower Follower) error {
	if p.probe == nil {
		return nil
	}
	for {
		all := true
		for _, o := range p.kinds {
			all = p.probeKind(ctx, follower, o) && all
		}
		pause := p.every
		if !all {
			pause = min(pause, retryPause)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// setSynced records whether an optional kind is synced. It ignores other kinds.
func (p *Prober) setSynced(id kinds.ID, synced bool, follower Follower) {
	p.mu.Lock()
	o := p.kinds[id]
	changed := o != nil && o.synced != synced
	if changed {
		o.synced = synced
		p.wakeWaiters()
	}
	p.mu.Unlock()
	if changed {
		follower.DeliveredChanged()
	}
}

// Delivered returns the optional kinds of which it is known whether nodes get them, sorted.
func (p *Prober) Delivered() []wire.DeliveredKind {
	p.mu.Lock()
	defer p.mu.Unlock()
	var delivered []wire.DeliveredKind
	for id, o := range p.kinds {
		if o.probed && (o.version == "" || o.synced) {
			delivered = append(delivered, wire.DeliveredKind{Group: id.Group, Resource: id.Resource, Version: o.version, Absence: o.absence})
		}
	}
	slices.SortFunc(delivered, func(a, b wire.DeliveredKind) int {
		return wire.Key{Group: a.Group, Resource: a.Resource}.Compare(wire.Key{Group: b.Group, Resource: b.Resource})
	})
	return delivered
}

// probeKind probes one kind, first in the version that is synced, and reports whether the answer was conclusive.
func (p *Prober) probeKind(ctx context.Context, follower Follower, o *probedKind) bool {
	p.mu.Lock()
	versions := slices.Clone(o.Versions)
	if current := o.version; current != "" {
		versions = append([]string{current}, slices.DeleteFunc(versions, func(v string) bool { return v == current })...)
	}
	p.mu.Unlock()
	for _, version := range versions {
		err := p.probeVersion(ctx, schema.GroupVersionResource{Group: o.ID.Group, Version: version, Resource: o.ID.Resource})
		switch {
		case err == nil:
			p.record(follower, o, version, "")
			return true
		case apierrors.IsForbidden(err):
			p.record(follower, o, "", wire.KindForbidden)
			return true
		case !apierrors.IsNotFound(err):
			if ctx.Err() == nil {
				p.log.Warn("not known whether a kind is served, trying again", zap.String("resource", o.ID.Resource), zap.Error(err))
			}
			return false
		}
	}
	p.record(follower, o, "", wire.KindNotServed)
	return true
}

func (p *Prober) probeVersion(ctx context.Context, resource schema.GroupVersionResource) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return p.probe(ctx, resource)
}

// record records the result of a probe: the version in which a kind is served, or the reason for its absence.
func (p *Prober) record(follower Follower, o *probedKind, version string, absence wire.KindAbsence) {
	p.mu.Lock()
	before := o.version
	if !o.take(version, absence) {
		p.mu.Unlock()
		return
	}
	if before != version {
		p.informers.setServed(o.Optional, version)
	}
	p.wakeWaiters()
	p.mu.Unlock()
	switch {
	case version == "" && absence == wire.KindForbidden:
		p.log.Warn("cloudcore may not read a kind, nodes get none of it: apply deploy/rbac", zap.String("resource", o.ID.Resource))
	case version == "":
		p.log.Info("kind is not served, nodes get none of it", zap.String("resource", o.ID.Resource))
	}
	follower.DeliveredChanged()
}

// take takes the result of a probe and reports whether it changes anything.
func (o *probedKind) take(version string, absence wire.KindAbsence) bool {
	if version == "" && o.version != "" {
		if o.misses++; o.misses < probeMisses {
			return false
		}
	}
	o.misses = 0
	if o.probed && o.version == version && o.absence == absence {
		return false
	}
	o.probed, o.version, o.absence = true, version, absence
	return true
}

// wakeWaiters wakes Await. The caller holds mu.
func (p *Prober) wakeWaiters() {
	close(p.changed)
	p.changed = make(chan struct{})
}
