package hubload

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/frond-edge/frond/leaf/redial"
)

// quotaPeriod is that of a container's CPU quota.
const quotaPeriod = 100 * time.Millisecond

// StormConfig is how the nodes of a Storm dial: the durations of leaf.Config.
type StormConfig struct {
	Nodes                            int
	RedialMin, RedialMax, StalledMax time.Duration
	DialTimeout, HandshakeTimeout    time.Duration
}

// Storm is nodes that all lost their link in the same moment and dial as gateways do.
type Storm struct {
	cfg  StormConfig
	hub  *Server
	stop context.CancelFunc
	all  sync.WaitGroup
	// linked is the number of nodes with a link, dials how often they dialled.
	linked, dials atomic.Int64
}

// StartStorm starts a storm; Stop ends it.
func (h *Server) StartStorm(cfg StormConfig) *Storm {
	ctx, stop := context.WithCancel(h.ctx)
	s := &Storm{cfg: cfg, hub: h, stop: stop}
	for i := range cfg.Nodes {
		s.all.Go(func() { s.runNode(ctx, nodeName(i)) })
	}
	return s
}

// Linked returns how many nodes have a link.
func (s *Storm) Linked() int { return int(s.linked.Load()) }

// Dials returns how often the nodes have dialled.
func (s *Storm) Dials() int { return int(s.dials.Load()) }

// Stop closes all links and waits for the nodes to end.
func (s *Storm) Stop() {
	s.stop()
	s.all.Wait()
}

// runNode keeps one node linked until ctx ends.
func (s *Storm) runNode(ctx context.Context, node string) {
	backoff := redial.Backoff{Min: s.cfg.RedialMin, Max: s.cfg.RedialMax, StalledMax: s.cfg.StalledMax, Jitter: rand.Float64}
	for ctx.Err() == nil {
		now := time.Now()
		backoff.StartOutage(now)
		var dial redial.Dial
		for ctx.Err() == nil {
			backoff.ScheduleNext(now, dial.Stalled(now))
			s.dials.Add(1)
			var link *leafClient
			link, dial = s.dialOnce(ctx, node, backoff.NextDial())
			if link != nil {
				backoff.EndOutage(time.Now())
				s.linked.Add(1)
				_ = link.serve(ctx) // a lost link is dialled again
				_ = link.conn.Close()
				s.linked.Add(-1)
				break
			}
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(backoff.NextDial())):
			}
			now = time.Now()
		}
	}
}

// dialOnce dials, for no longer than until the next dial is due, and returns how far it came.
func (s *Storm) dialOnce(ctx context.Context, node string, next time.Time) (*leafClient, redial.Dial) {
	ctx, cancel := context.WithDeadline(ctx, next)
	defer cancel()
	conn, err := (&net.Dialer{Timeout: s.cfg.DialTimeout}).DialContext(ctx, "tcp", s.hub.leaf)
	if err != nil {
		return nil, redial.Dial{}
	}
	dial := redial.Dial{ReachedAt: time.Now()}
	link, err := s.logIn(ctx, node, conn)
	if err != nil {
		_ = conn.Close()
		dial.ClosedAt = time.Now()
		return nil, dial
	}
	return link, dial
}

// logIn does what follows on a connection, each stage within the handshake timeout.
func (s *Storm) logIn(ctx context.Context, node string, conn net.Conn) (*leafClient, error) {
	secure := tls.Client(conn, s.hub.client)
	stage, cancel := context.WithTimeout(ctx, s.cfg.HandshakeTimeout)
	defer cancel()
	if err := secure.HandshakeContext(stage); err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	stage, cancel = context.WithTimeout(ctx, s.cfg.HandshakeTimeout)
	defer cancel()
	return logInLeaf(stage, secure, node, &s.hub.delivered)
}

// LimitCPU lets the server run for this share of the time, on one processor, until the returned function is called.
func (h *Server) LimitCPU(share float64) (lift func() error) {
	ctx, cancel := context.WithCancel(h.ctx)
	var limiter sync.WaitGroup
	limiter.Go(func() {
		run := time.Duration(share * float64(quotaPeriod))
		for ctx.Err() == nil {
			h.signal(syscall.SIGSTOP)
			sleep(ctx, quotaPeriod-run)
			h.signal(syscall.SIGCONT)
			sleep(ctx, run)
		}
	})
	return func() error {
		cancel()
		limiter.Wait()
		return h.cmd.Process.Signal(syscall.SIGCONT)
	}
}

// signal fails only when the server has ended, which the test sees elsewhere.
func (h *Server) signal(sig syscall.Signal) { _ = h.cmd.Process.Signal(sig) }

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
