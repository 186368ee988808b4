package scopesync

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// fakeScopeSource replaces the local API: the test sets its wants.
type fakeScopeSource struct {
	mu          sync.Mutex
	wants       []wire.ScopeWant // guarded by mu
	changed     chan struct{}    // guarded by mu
	verdictsSet int              // guarded by mu
	byNeed      bool             // guarded by mu
}

func (l *fakeScopeSource) WantedScopes() ([]wire.ScopeWant, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.wants), l.changed
}

func (l *fakeScopeSource) ServicesByNeed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byNeed
}

func (l *fakeScopeSource) SetScopeVerdicts([]wire.ScopeVerdict) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.verdictsSet++
}

func (l *fakeScopeSource) setWants(scopes ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wants = nil
	for _, s := range scopes {
		l.wants = append(l.wants, wire.ScopeWant{Scope: wire.Scope{Version: "v1", Resource: s}, Users: []string{"u"}})
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// cloudStub follows the cloud's rule: a request that is not newer changes nothing.
type cloudStub struct {
	mu     sync.Mutex
	order  uint64
	asked  int
	byNeed bool
	wants  []wire.ScopeWant
	refuse wire.ScopeReason
	fail   error
}

func (c *cloudStub) handleRequest(_ context.Context, r wire.ScopesRequest) (wire.ScopesReply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if c.fail != nil {
		return wire.ScopesReply{}, c.fail
	}
	if r.Order < c.order || r.Order == c.order && !equalWants(sortWants(r.Wants), sortWants(c.wants)) {
		return wire.ScopesReply{Order: c.order}, nil
	}
	c.order, c.wants, c.byNeed = r.Order, r.Wants, r.ServicesByNeed
	reply := wire.ScopesReply{Order: r.Order}
	for _, w := range r.Wants {
		reply.Verdicts = append(reply.Verdicts, wire.ScopeVerdict{Scope: w.Scope, User: "u", Reason: c.refuse})
	}
	return reply, nil
}

func (c *cloudStub) snapshot() (order uint64, asked int, names []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.wants {
		names = append(names, w.Resource)
	}
	return c.order, c.asked, names
}

func TestSender_SendsWantsToCloud(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, c, link := &fakeScopeSource{changed: make(chan struct{})}, &cloudStub{order: 40}, streamstest.NewSwitchableLink()
		link.SetUp(false)
		w := New(l, link, c.handleRequest, zaptest.NewLogger(t))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Start(ctx) }()
		expect := func(what string, wantOrder uint64, wantAsked int, wantNames ...string) {
			t.Helper()
			synctest.Wait()
			order, asked, names := c.snapshot()
			if order != wantOrder || asked != wantAsked || !cmp.Equal(names, wantNames) {
				t.Fatalf("%s: order %d, asked %d times, %q; want %d, %d, %q", what, order, asked, names, wantOrder, wantAsked, wantNames)
			}
		}
		wait := func(d time.Duration) { <-time.After(d) }
		l.setWants("b", "a")
		expect("offline", 40, 0)
		link.SetUp(true)
		wait(time.Second)
		expect("a new process after an old one, whose order is higher", 41, 2, "a", "b")
		l.setWants("a", "b")
		wait(time.Second)
		expect("the same in another order", 41, 3, "a", "b")
		l.setWants("a")
		l.setWants("a", "c")
		wait(time.Second)
		expect("two changes at once are told once", 42, 4, "a", "c")
		wait(2 * sendInterval)
		expect("and again now and then, which changes nothing", 42, 5, "a", "c")

		c.mu.Lock()
		c.fail = errors.New("offline")
		c.mu.Unlock()
		l.setWants("d")
		wait(time.Second)
		expect("nobody answers", 42, 6, "a", "c")
		c.mu.Lock()
		c.fail, c.refuse = nil, wire.ScopeForeign
		c.mu.Unlock()
		wait(minBackoff)
		expect("asked again soon", 43, 7, "d")
		wait(2*minBackoff + time.Second)
		expect("and again, as it is refused", 43, 8, "d")
		link.SetUp(false)
		l.setWants()
		wait(time.Hour)
		expect("offline again", 43, 8, "d")
		link.SetUp(true)
		wait(time.Second)
		expect("back", 44, 9)
		l.mu.Lock()
		l.byNeed = true
		l.mu.Unlock()
		l.setWants()
		wait(time.Second)
		expect("Services are asked for by need", 45, 10)
		if !c.byNeed {
			t.Error("the cloud was not told that Services are asked for by need")
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if l.verdictsSet == 0 {
			t.Error("the local API was told no verdict")
		}
	})
}
