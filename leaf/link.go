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

// linkPollInterval is how often the supervisor looks for the link. nats-server has no event for a link that it dialled; a look
// takes a lock and a length.
const linkPollInterval = 100 * time.Millisecond

// outageDivisor: a link that has been away for t is dialled again after t/outageDivisor. It is then found at most a quarter
// later than it could be, and long outages cost the hub few dials.
const outageDivisor = 4

// outageCredit is how much outage a link makes up for, in times of its own length: one that was soon lost does not shorten the
// pauses much, so a hub that accepts and drops us is not dialled every second; one that worked does, so that hub servers that
// are restarted one after the other do not cost more each time.
const outageCredit = 4

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
	return s.link, s.linkChanged
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
	case s.redialRequests <- struct{}{}:
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
	close(s.linkChanged)
	s.linkChanged = make(chan struct{})
}

// hubLink is what the supervisor can do to the server's link.
type hubLink interface {
	// connection returns the id of the present link; 0 for none.
	connectionID() uint64
	// received is how many messages came over a link; partly received ones do not count.
	messagesReceived(id uint64) int64
	// drop closes a link.
	closeLink(id uint64)
	// redial ends whatever the server does about the remote, and the link there is, and dials at once.
	replaceRemote() error
}

// linkSupervisor watches the link and dials again.
type linkSupervisor struct {
	cfg           Config
	remote        hubLink
	server        *Server
	metrics       *linkMetrics
	log           *zap.Logger
	backoff       redialBackoff
	state         LinkState
	lastSeenID    uint64 // id of the connection at the last look
	linkID        uint64 // id of the connection that counts as the link
	probeTargets  chan uint64
	lastDialError string // why the last dial was not even begun
}

func newLinkSupervisor(cfg Config, r hubLink, server *Server, m *linkMetrics, log *zap.Logger) *linkSupervisor {
	return &linkSupervisor{
		cfg: cfg, remote: r, server: server, metrics: m, log: log.Named("link"),
		backoff: redialBackoff{min: cfg.RedialMin, max: cfg.RedialMax, jitter: rand.Float64},
		// One place: only the newest link is worth a probe.
		probeTargets: make(chan uint64, 1),
	}
}

func (s *linkSupervisor) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.superviseLink(ctx) })
	if s.cfg.Probe != nil {
		g.Go(func() error { return s.runProbes(ctx) })
	}
	return g.Wait()
}

func (s *linkSupervisor) superviseLink(ctx context.Context) error {
	t := time.NewTicker(linkPollInterval)
	defer t.Stop()
	s.backoff.startOutage(time.Now())
	s.dialHub(time.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.server.redialRequests:
			s.dialHub(time.Now())
		case now := <-t.C:
			s.checkLink(now)
		}
	}
}

// checkLink compares the server's links with what was announced, and dials when it is time.
func (s *linkSupervisor) checkLink(now time.Time) {
	id := s.remote.connectionID()
	// A link counts when it has lived through two looks: a hub that refuses us closes it in between.
	confirmed := id != 0 && id == s.lastSeenID
	s.lastSeenID = id
	switch {
	case s.linkID != 0 && id != s.linkID:
		s.handleLinkLost(now)
	case s.linkID == 0 && confirmed:
		s.handleLinkUp(now, id)
	}
	if id == 0 && s.backoff.due(now) {
		s.metrics.redials.Inc()
		s.dialHub(now)
	}
}

// dialHub says once what keeps it from dialling.
func (s *linkSupervisor) dialHub(now time.Time) {
	s.backoff.scheduleNext(now)
	err := s.remote.replaceRemote()
	switch {
	case err == nil:
		s.lastDialError = ""
	case err.Error() != s.lastDialError:
		s.lastDialError = err.Error()
		s.server.setProblem(s.lastDialError)
		s.log.Warn("the hub cannot be dialled yet", zap.Error(err))
	}
}

func (s *linkSupervisor) handleLinkLost(now time.Time) {
	s.log.Warn("link to the hub lost, dialling again", zap.Duration("up", now.Sub(s.state.Since)))
	s.linkID = 0
	s.backoff.startOutage(now)
	s.state = LinkState{Since: now, Reconnects: s.state.Reconnects}
	s.metrics.up.Set(0)
	s.server.setLink(s.state)
}

func (s *linkSupervisor) handleLinkUp(now time.Time, id uint64) {
	s.backoff.endOutage(now)
	s.linkID = id
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
	case <-s.probeTargets:
	default:
	}
	s.probeTargets <- id // the only sender, and the place is empty
}

// runProbes makes round trips over each link that comes up and drops the link when they fail for too long and nothing else
// comes either: an answer may be late because it stands behind something large. That what is sent does not arrive, the
// server's own pings find.
func (s *linkSupervisor) runProbes(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case id := <-s.probeTargets:
			s.probeLink(ctx, id)
		}
	}
}

func (s *linkSupervisor) probeLink(ctx context.Context, id uint64) {
	good, came := time.Now(), s.remote.messagesReceived(id)
	t := time.NewTicker(s.cfg.ProbeInterval)
	defer t.Stop()
	for {
		// A probe may take what is left, so that one that hangs is noticed in time.
		left := s.cfg.ProbeTimeout - time.Since(good)
		if left <= 0 {
			s.log.Warn("link answers no probe, dropping it", zap.Duration("silent", time.Since(good)))
			s.metrics.dropped.Inc()
			s.remote.closeLink(id)
			return
		}
		err := s.probeOnce(ctx, min(left, s.cfg.ProbeInterval))
		if now := s.remote.messagesReceived(id); err == nil || now != came {
			good, came = time.Now(), now
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if s.remote.connectionID() != id {
			return // the next link brings its own probe
		}
	}
}

func (s *linkSupervisor) probeOnce(ctx context.Context, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := s.cfg.Probe(ctx)
	if err != nil && !errors.Is(err, context.Canceled) {
		s.log.Debug("probe failed", zap.Error(err))
	}
	return err
}

// redialBackoff decides when to dial. It holds no clock.
type redialBackoff struct {
	min, max time.Duration
	jitter   func() float64 // in [0,1)

	outageStart time.Time // begin of the outage
	linkedSince time.Time // begin of the link; zero while there is none
	nextDial    time.Time // when to dial next
}

// startOutage begins an outage. What its links have not made up for of the ones before counts as its beginning.
func (p *redialBackoff) startOutage(now time.Time) {
	if p.linkedSince.IsZero() {
		p.outageStart = now
	} else {
		before := min(p.linkedSince.Sub(p.outageStart), outageDivisor*p.max) // more makes no pause longer
		p.outageStart = now.Add(-max(0, before-outageCredit*now.Sub(p.linkedSince)))
	}
	p.linkedSince = time.Time{}
	p.scheduleNext(now)
}

// scheduleNext sets the next dial after one at now.
func (p *redialBackoff) scheduleNext(now time.Time) {
	wait := float64(min(max(now.Sub(p.outageStart)/outageDivisor, p.min), p.max))
	p.nextDial = now.Add(time.Duration(wait * (0.6 + 0.4*p.jitter())))
}

func (p *redialBackoff) due(now time.Time) bool {
	return p.linkedSince.IsZero() && !now.Before(p.nextDial)
}

// endOutage ends an outage.
func (p *redialBackoff) endOutage(now time.Time) { p.linkedSince = now }
