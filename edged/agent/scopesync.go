package agent

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/subject"
)

const (
	// scopesSettleDelay is how long changes are collected: a component begins with several lists.
	scopesSettleDelay = 200 * time.Millisecond
	// scopesInterval is how often an unchanged set is sent to the cloud, with up to half of it added at random: it repairs
	// a lost registry. The same set costs the cloud no write.
	scopesInterval = 5 * time.Minute
	// scopesMinBackoff is the pause after a refusal or a missing answer; it doubles up to scopesInterval.
	scopesMinBackoff = 5 * time.Second
)

// scopeSource lists the scopes that components at this node list and watch.
type scopeSource interface {
	// WantedScopes returns all wanted scopes, and a channel that closes at the next change.
	WantedScopes() (wants []wire.ScopeWant, changed <-chan struct{})
	// SetScopeVerdicts takes the cloud's verdicts on the sent scopes. It must not block.
	SetScopeVerdicts(verdicts []wire.ScopeVerdict)
}

// linkState reports whether the cloud is reachable, as link.FencedLink does.
type linkState interface {
	State() (up bool, changed <-chan struct{})
}

// scopeSync sends the scopes that components here want to the cloud, whenever they or the link change.
type scopeSync struct {
	source scopeSource
	link   linkState
	ask    func(ctx context.Context, request wire.ScopesRequest) (wire.ScopesReply, error)
	log    *zap.Logger

	// Used by the loop alone.

	order        uint64
	sent         []wire.ScopeWant
	sentAccepted bool // the cloud holds the set sent, with order
	pause        time.Duration
}

// scopeParts returns the part that sends scopes to the cloud, if there is a source of them.
func (n *Node) scopeParts(nc *nats.Conn, source scopeSource, link linkState) []lifecycle.Part {
	if source == nil {
		return nil
	}
	w := &scopeSync{source: source, link: link, log: n.log.Named("scopes"), ask: func(ctx context.Context, request wire.ScopesRequest) (wire.ScopesReply, error) {
		var reply wire.ScopesReply
		if err := call.Call(ctx, nc, n.cfg.Node, subject.VerbScopes, request, &reply); err != nil {
			return reply, err
		}
		if reply.Error != "" {
			return reply, errors.New(reply.Error)
		}
		return reply, nil
	}}
	return []lifecycle.Part{{Name: "scopes", Start: w.Start}}
}

// Start sends scopes until ctx ends and then returns nil.
func (w *scopeSync) Start(ctx context.Context) error {
	for {
		wants, changed := w.source.WantedScopes()
		up, relinked := w.link.State()
		var again <-chan time.Time
		if up {
			again = time.After(w.sendWants(ctx, sortWants(wants)))
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
			case <-time.After(scopesSettleDelay):
			}
		}
	}
}

// sendWants sends the set once, and returns the pause before it is sent again.
func (w *scopeSync) sendWants(ctx context.Context, wants []wire.ScopeWant) time.Duration {
	if !w.sentAccepted || !equalWants(wants, w.sent) {
		w.order++
		w.sent, w.sentAccepted = wants, true
	}
	reply, err := w.ask(ctx, wire.ScopesRequest{Order: w.order, Wants: wants})
	switch {
	case ctx.Err() != nil:
		return scopesInterval
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
	return scopesInterval + rand.N(scopesInterval/2) //nolint:gosec // not a secret
}

// nextBackoff returns the pause after a failure.
func (w *scopeSync) nextBackoff() time.Duration {
	w.pause = min(max(2*w.pause, scopesMinBackoff), scopesInterval)
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
