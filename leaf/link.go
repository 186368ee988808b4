package leaf

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

// tick is how often the supervisor looks for the link. nats-server has no event for a link that it dialled; a look
// takes a lock and a length.
const tick = 100 * time.Millisecond

// outageShare: a link that has been away for t is dialled again after t/outageShare. It is then found at most a quarter
// later than it could be, and long outages cost the hub few dials.
const outageShare = 4

// forgiven is how much outage a link makes up for, in times of its own length: one that was soon lost does not shorten the
// pauses much, so a hub that accepts and drops us is not dialled every second; one that worked does, so that hub servers that
// are restarted one after the other do not cost more each time.
const forgiven = 4

// LinkState is what is known of the link to the hub.
type LinkState struct {
	Up bool
	// Since is when Up became what it is; zero before the first link.
	Since time.Time
	// Reconnects counts the links after the first one.
	Reconnects uint64
}

// Link returns the present state of the link.
func (s *Server) Link() LinkState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link
}

// WatchLink returns the present state and a channel that closes when it changes. A loop that calls it, acts and waits for
// the channel misses no last state, and there is nothing to unsubscribe.
func (s *Server) WatchLink() (LinkState, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link, s.change
}

// ErrRefused says that the hub does not let this node in with what it shows.
var ErrRefused = errors.New("the hub refuses this gateway's credential")

// Problem is why there is no link, as far as is known: the last fault since there was one, or nil. It wraps ErrRefused when the
// hub answered so, which it also does while nobody is there to judge.
func (s *Server) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// setProblem keeps what nats-server says: it has no other way to tell. Its text is judged here and nowhere else.
func (s *Server) setProblem(text string) {
	err := errors.New(text)
	if strings.Contains(text, "Authorization Violation") || strings.Contains(text, "Authentication Timeout") {
		err = ErrRefused
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.link.Up {
		s.problem = err
	}
}

// Redial gives up the link there is, if any, and dials at once.
func (s *Server) Redial() {
	select {
	case s.again <- struct{}{}:
	default:
	}
}

func (s *Server) setLink(l LinkState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.link = l
	if l.Up {
		s.problem = nil
	}
	close(s.change)
	s.change = make(chan struct{})
}

// remoteControl is what the supervisor can do to the server's link.
type remoteControl interface {
	// connection returns the id of the present link; 0 for none.
	connection() uint64
	// received is how many messages came over a link; partly received ones do not count.
	received(id uint64) int64
	// drop closes a link.
	drop(id uint64)
	// redial ends whatever the server does about the remote, and the link there is, and dials at once.
	redial() error
}

// supervisor watches the link and dials again.
type supervisor struct {
	cfg     Config
	remote  remoteControl
	server  *Server
	metrics *metrics
	log     *zap.Logger
	plan    redialPlan
	state   LinkState
	seen    uint64 // id of the connection at the last look
	current uint64 // id of the connection that counts as the link
	probing chan uint64
	said    string // why the last dial was not even begun
}

func newSupervisor(cfg Config, r remoteControl, server *Server, m *metrics, log *zap.Logger) *supervisor {
	return &supervisor{
		cfg: cfg, remote: r, server: server, metrics: m, log: log.Named("link"),
		plan: redialPlan{min: cfg.RedialMin, max: cfg.RedialMax, jitter: rand.Float64},
		// One place: only the newest link is worth a probe.
		probing: make(chan uint64, 1),
	}
}

func (s *supervisor) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.watch(ctx) })
	if s.cfg.Probe != nil {
		g.Go(func() error { return s.probe(ctx) })
	}
	return g.Wait()
}

func (s *supervisor) watch(ctx context.Context) error {
	t := time.NewTicker(tick)
	defer t.Stop()
	s.plan.down(time.Now())
	s.dial(time.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.server.again:
			s.dial(time.Now())
		case now := <-t.C:
			s.look(now)
		}
	}
}

// look compares the server's links with what was announced, and dials when it is time.
func (s *supervisor) look(now time.Time) {
	id := s.remote.connection()
	// A link counts when it has lived through two looks: a hub that refuses us closes it in between.
	confirmed := id != 0 && id == s.seen
	s.seen = id
	switch {
	case s.current != 0 && id != s.current:
		s.lost(now)
	case s.current == 0 && confirmed:
		s.gained(now, id)
	}
	if id == 0 && s.plan.due(now) {
		s.metrics.redials.Inc()
		s.dial(now)
	}
}

// dial says once what keeps it from dialling.
func (s *supervisor) dial(now time.Time) {
	s.plan.dialled(now)
	err := s.remote.redial()
	switch {
	case err == nil:
		s.said = ""
	case err.Error() != s.said:
		s.said = err.Error()
		s.server.setProblem(s.said)
		s.log.Warn("the hub cannot be dialled yet", zap.Error(err))
	}
}

func (s *supervisor) lost(now time.Time) {
	s.log.Warn("link to the hub lost, dialling again", zap.Duration("up", now.Sub(s.state.Since)))
	s.current = 0
	s.plan.down(now)
	s.state = LinkState{Since: now, Reconnects: s.state.Reconnects}
	s.metrics.up.Set(0)
	s.server.setLink(s.state)
}

func (s *supervisor) gained(now time.Time, id uint64) {
	s.plan.up(now)
	s.current = id
	n := s.state.Reconnects
	if s.state.Since.IsZero() {
		s.log.Info("link to the hub up")
	} else {
		n++
		s.metrics.reconnects.Inc()
		s.log.Info("link to the hub up again", zap.Duration("away", now.Sub(s.state.Since)))
	}
	s.state = LinkState{Up: true, Since: now, Reconnects: n}
	s.metrics.up.Set(1)
	s.server.setLink(s.state)
	select {
	case <-s.probing:
	default:
	}
	s.probing <- id // the only sender, and the place is empty
}

// probe makes round trips over each link that comes up and drops the link when they fail for too long and nothing else
// comes either: an answer may be late because it stands behind something large. That what is sent does not arrive, the
// server's own pings find.
func (s *supervisor) probe(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-s.probing:
			s.probeLink(ctx, id)
		}
	}
}

func (s *supervisor) probeLink(ctx context.Context, id uint64) {
	good, came := time.Now(), s.remote.received(id)
	t := time.NewTicker(s.cfg.ProbeInterval)
	defer t.Stop()
	for {
		// A probe may take what is left, so that one that hangs is noticed in time.
		left := s.cfg.ProbeTimeout - time.Since(good)
		if left <= 0 {
			s.log.Warn("link answers no probe, dropping it", zap.Duration("silent", time.Since(good)))
			s.metrics.dropped.Inc()
			s.remote.drop(id)
			return
		}
		err := s.probeOnce(ctx, min(left, s.cfg.ProbeInterval))
		if now := s.remote.received(id); err == nil || now != came {
			good, came = time.Now(), now
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if s.remote.connection() != id {
			return // the next link brings its own probe
		}
	}
}

func (s *supervisor) probeOnce(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := s.cfg.Probe(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		s.log.Debug("probe failed", zap.Error(err))
	}
	return err
}

// redialPlan decides when to dial. It holds no clock.
type redialPlan struct {
	min, max time.Duration
	jitter   func() float64 // in [0,1)

	outage time.Time // begin of the outage
	linked time.Time // begin of the link; zero while there is none
	next   time.Time // when to dial next
}

// down begins an outage. What its links have not made up for of the ones before counts as its beginning.
func (p *redialPlan) down(now time.Time) {
	if p.linked.IsZero() {
		p.outage = now
	} else {
		before := min(p.linked.Sub(p.outage), outageShare*p.max) // more makes no pause longer
		p.outage = now.Add(-max(0, before-forgiven*now.Sub(p.linked)))
	}
	p.linked = time.Time{}
	p.dialled(now)
}

// dialled sets the next dial after one at now.
func (p *redialPlan) dialled(now time.Time) {
	wait := float64(min(max(now.Sub(p.outage)/outageShare, p.min), p.max))
	p.next = now.Add(time.Duration(wait * (0.6 + 0.4*p.jitter())))
}

func (p *redialPlan) due(now time.Time) bool {
	return p.linked.IsZero() && !now.Before(p.next)
}

// up ends an outage.
func (p *redialPlan) up(now time.Time) { p.linked = now }
