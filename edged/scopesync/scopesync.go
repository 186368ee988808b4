// Package scopesync tells the cloud which kinds the components of a gateway list and watch, and brings back its verdicts.
//
// It sends the whole set at each change of it or of the link, and periodically: a request that is lost or repeated does no harm.
package scopesync

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// settleDelay is how long changes are collected: a component begins with several lists.
	settleDelay = 200 * time.Millisecond
	// sendInterval is how often an unchanged set is sent to the cloud, with up to half of it added at random: it repairs
	// a lost registry. The same set costs the cloud no write.
	sendInterval = 5 * time.Minute
	// minBackoff is the pause after a refusal or a missing answer; it doubles up to sendInterval.
	minBackoff = 5 * time.Second
)

// Source lists the scopes that components at this node list and watch.
type Source interface {
	// WantedScopes returns all wanted scopes, and a channel that closes at the next change.
	WantedScopes() (wants []wire.ScopeWant, changed <-chan struct{})
	// ServicesByNeed reports whether WantedScopes contains the wanted scopes on Services and EndpointSlices. The channel of
	// WantedScopes closes when it changes.
	ServicesByNeed() bool
	// SetScopeVerdicts takes the cloud's verdicts on the sent scopes. It must not block.
	SetScopeVerdicts(verdicts []wire.ScopeVerdict)
}

// Link reports whether the cloud is reachable, as link.FencedLink does.
type Link interface {
	State() (up bool, changed <-chan struct{})
}

// AskFunc sends a set to the cloud and returns its verdicts.
type AskFunc func(ctx context.Context, request wire.ScopesRequest) (wire.ScopesReply, error)

// Sender sends the scopes that components here want to the cloud, whenever they or the link change.
type Sender struct {
	source Source
	link   Link
	ask    AskFunc
	log    *zap.Logger

	// Used by the loop alone.

	order        uint64
	sent         []wire.ScopeWant
	sentByNeed   bool // with ServicesByNeed
	sentAccepted bool // the cloud holds the set sent, with order
	pause        time.Duration
}

// New returns the sender of a node's scopes.
func New(source Source, link Link, ask AskFunc, log *zap.Logger) *Sender {
	return &Sender{source: source, link: link, ask: ask, log: log}
}

// Start sends scopes until ctx ends and then returns nil.
func (w *Sender) Start(ctx context.Context) error {
	for {
		byNeed := w.source.ServicesByNeed() // before the wants, which must be at least as new
		wants, changed := w.source.WantedScopes()
		up, relinked := w.link.State()
		var again <-chan time.Time
		if up {
			again = time.After(w.sendWants(ctx, sortWants(wants), byNeed))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-relinked:
			w.pause = 0
		case <-again:
		case <-changed:
			w.pause = 0
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(settleDelay):
			}
		}
	}
}

// sendWants sends the set once, and returns the pause before it is sent again.
func (w *Sender) sendWants(ctx context.Context, wants []wire.ScopeWant, byNeed bool) time.Duration {
	if !w.sentAccepted || byNeed != w.sentByNeed || !equalWants(wants, w.sent) {
		w.order++
		w.sent, w.sentByNeed, w.sentAccepted = wants, byNeed, true
	}
	reply, err := w.ask(ctx, wire.ScopesRequest{Order: w.order, Wants: wants, ServicesByNeed: byNeed})
	switch {
	case ctx.Err() != nil:
		return sendInterval
	case err != nil, reply.Order < w.order:
		w.log.Info("cloud not told what components here watch, trying again", zap.Error(err))
		return w.nextBackoff()
	case reply.Order != w.order: // of an earlier process of this node, or of a delayed request
		w.order, w.sentAccepted = max(w.order, reply.Order), false
		return 0
	}
	w.source.SetScopeVerdicts(reply.Verdicts)
	if slices.ContainsFunc(reply.Verdicts, func(v wire.ScopeVerdict) bool { return v.Reason != "" }) {
		return w.nextBackoff()
	}
	w.pause = 0
	return sendInterval + rand.N(sendInterval/2) //nolint:gosec // not a secret
}

// nextBackoff returns the pause after a failure.
func (w *Sender) nextBackoff() time.Duration {
	w.pause = min(max(2*w.pause, minBackoff), sendInterval)
	return w.pause
}

// sortWants sorts a set, so that equal sets are encoded alike.
func sortWants(wants []wire.ScopeWant) []wire.ScopeWant {
	out := make([]wire.ScopeWant, 0, len(wants))
	for _, want := range wants {
		out = append(out, wire.ScopeWant{Scope: want.Scope, Users: slices.Sorted(slices.Values(want.Users))})
	}
	slices.SortFunc(out, func(a, b wire.ScopeWant) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource),
			strings.Compare(a.Version, b.Version), strings.Compare(a.Namespace, b.Namespace))
	})
	return out
}

func equalWants(a, b []wire.ScopeWant) bool {
	return slices.EqualFunc(a, b, func(x, y wire.ScopeWant) bool { return x.Scope == y.Scope && slices.Equal(x.Users, y.Users) })
}
