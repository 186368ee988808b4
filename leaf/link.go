package leaf

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/leaf/redial"
)

// linkPollInterval is how often the supervisor checks the link. nats-server has no event for a link that it dialled; a check takes a lock
// and a length.
const linkPollInterval = 100 * time.Millisecond

// LinkState is the state of the link to the hub.
type LinkState struct {
	Up bool
	// Since is when Up last changed; zero before the first link.
	Since time.Time
	// Reconnects counts the links after the first one.
	Reconnects uint64
}

// Link returns the current state of the link.
func (s *Server) Link() LinkState {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link
}

// WatchLink returns the current state and a channel that closes when it changes. A loop that calls WatchLink, acts and waits for the
// channel misses no final state, and there is nothing to unsubscribe.
func (s *Server) WatchLink() (LinkState, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.link, s.linkChanged
}

// ErrRefused reports that the hub does not admit this node with its credential.
var ErrRefused = errors.New("the hub refuses this gateway's credential")

// Problem returns the reason why there is no link, as far as is known: the last fault since the last link, or nil. It wraps ErrRefused
// when the hub refused the node, which it also does while no cloudcore is there to decide.
func (s *Server) Problem() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.problem
}

// setProblem records the error text of nats-server, which reports it in no other way. The text is interpreted only here.
func (s *Server) setProblem(text string) {
	err := errors.New(text)
	if strings.Contains(text, "Authorization Violation") || strings.Contains(text, "Authentication Timeout") {
		err = ErrRefused
		s.dial.setRefused()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.link.Up {
		s.problem = err
	}
}

// Redial drops the current link, if any, and dials at once.
func (s *Server) Redial() {
	select {
	case s.redialRequests <- struct{}{}:
	default:
	}
}

// ExpectStop takes the announcement that a server of the hub stops and closes its links one by one: a link to it that is lost within three
// minutes is dialled again without a pause.
func (s *Server) ExpectStop(hubServer string) { s.stops.set(hubServer, time.Now()) }

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

// hubLink is the supervisor's interface to the server's link.
type hubLink interface {
	// connection returns the id of the current link and the name of the hub server at its other end; 0 for none.
	connection() (id uint64, server string)
	// messagesReceived returns how many messages arrived over a link; partly received ones do not count.
	messagesReceived(id uint64) int64
	// closeLink closes a link.
	closeLink(id uint64)
	// replaceRemote ends the server's own attempts for the remote and the current link, and dials at once.
	replaceRemote() error
}

// linkSupervisor watches the link and redials it.
type linkSupervisor struct {
	cfg           Config
	remote        hubLink
	server        *Server
	metrics       *linkMetrics
	log           *zap.Logger
	backoff       redial.Backoff
	state         LinkState
	lastSeenID    uint64 // id of the connection at the last check
	linkID        uint64 // id of the connection that counts as the link
	linkServer    string // the hub server at the other end of the link
	probeTargets  chan uint64
	lastDialError string // why the last dial was not started
}

func newLinkSupervisor(cfg Config, r hubLink, server *Server, m *linkMetrics, log *zap.Logger) *linkSupervisor {
	return &linkSupervisor{
		cfg: cfg, remote: r, server: server, metrics: m, log: log.Named("link"),
		backoff: redial.Backoff{Min: cfg.RedialMin, Jitter: rand.Float64}, // limitPauses sets the rest
		// Room for one: only the newest link is worth a probe.
		probeTargets: make(chan uint64, 1),
	}
}

// beginDialling dials for the first time. It is called once, before run.
func (s *linkSupervisor) beginDialling() {
	s.limitPauses()
	s.backoff.StartOutage(time.Now())
	s.dialHub(time.Now())
}

// run watches the link that beginDialling asked for, and those after it, until ctx ends.
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

// checkLink compares the server's links with the announced state, and dials when it is time.
func (s *linkSupervisor) checkLink(now time.Time) {
	id, hub := s.remote.connection()
	// A link counts when it has survived two checks: a hub that refuses the node closes it in between.
	confirmed := id != 0 && id == s.lastSeenID
	s.lastSeenID = id
	switch {
	case s.linkID != 0 && id != s.linkID:
		s.handleLinkLost(now)
		if id == 0 && s.server.stops.announced(s.linkServer, now) { // it closes its links one by one, so this dial need not wait for its turn
			s.dialHub(now)
		}
	case s.linkID == 0 && confirmed:
		s.linkServer = hub
		s.server.stops.clear(hub) // a server that stops takes no links: this is another process
		s.handleLinkUp(now, id)
	}
	if id == 0 && s.backoff.Due(now) {
		s.metrics.redials.Inc()
		s.dialHub(now)
	}
}

// dialHub dials, and logs an obstacle to dialling once.
func (s *linkSupervisor) dialHub(now time.Time) {
	s.limitPauses()
	s.backoff.ScheduleNext(now, s.server.dial.current().Stalled(now))
	s.server.dial.begin()
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

// limitPauses takes the longest pause that the cloud has told.
func (s *linkSupervisor) limitPauses() {
	s.backoff.Max = s.server.redialMax.duration()
	s.backoff.StalledMax = max(s.cfg.StalledMax, s.backoff.Max)
}

func (s *linkSupervisor) handleLinkLost(now time.Time) {
	s.log.Warn("link to the hub lost, dialling again", zap.Duration("up", now.Sub(s.state.Since)))
	s.linkID = 0
	s.limitPauses()
	s.backoff.StartOutage(now)
	s.state = LinkState{Since: now, Reconnects: s.state.Reconnects}
	s.metrics.up.Set(0)
	s.server.setLink(s.state)
}

func (s *linkSupervisor) handleLinkUp(now time.Time, id uint64) {
	s.backoff.EndOutage(now)
	s.server.dial.begin() // what comes of the link is no longer the dial's
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
	s.probeTargets <- id // the only sender, and the channel is empty
}

// runProbes watches each link that comes up. A link that no message arrives on is in doubt and gets round trips; it is dropped when they
// fail for too long and no other message arrives either: an answer may be late because it waits behind something large. The server's own
// pings detect that sent data does not arrive.
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
	good, received := time.Now(), s.remote.messagesReceived(id)
	t := time.NewTicker(s.cfg.ProbeInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if now, _ := s.remote.connection(); now != id {
			return // the next link is watched by its own call
		}
		if now := s.remote.messagesReceived(id); now != received {
			good, received = time.Now(), now
		}
		silent := time.Since(good)
		if silent < s.cfg.ProbeAfter {
			continue
		}
		// A probe may take the remaining time, so that one that hangs is noticed in time.
		left := s.cfg.ProbeTimeout - silent
		if left <= 0 {
			s.log.Warn("link answers no probe, dropping it", zap.Duration("silent", silent))
			s.metrics.dropped.Inc()
			s.remote.closeLink(id)
			return
		}
		if s.probeOnce(ctx, min(left, s.cfg.ProbeInterval)) == nil {
			good = time.Now()
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
