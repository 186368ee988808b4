package tunnel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/streams/tunnel/protocol"
	"github.com/frond-edge/frond/streams/tunnel/stream"
)

const (
	// ticksPerKeepAlive is how often each stream is checked per KeepAlive.
	ticksPerKeepAlive = 4
	// staleTTL is how long the end of a stream is remembered, so that its late frames are distinguished from garbage.
	staleTTL = time.Minute
	// maxStale bounds that memory; frames of streams beyond it count as unknown.
	maxStale = 1 << 14
	// pendingBytes may wait for the dispatcher, which only looks streams up; beyond it NATS drops messages, and streams break.
	pendingBytes = 256 << 20
	// shutdownFlushTimeout bounds the sending of the last frames.
	shutdownFlushTimeout = time.Second
)

// errStreamExists reports a key that is in use.
var errStreamExists = errors.New("the stream exists")

// mux is the common part of Dialer and Server: the streams of a process, by key, over one subscription.
type mux struct {
	nc                        *nats.Conn
	cfg                       Config
	metrics                   *Metrics
	log                       *zap.Logger
	sendPrefix, receivePrefix string // subject prefixes
	frames                    *framePublisher
	growth                    *stream.Pool // of all windows
	ready                     chan struct{}

	mu      sync.Mutex // guards all below
	serving bool
	streams map[string]*Conn
	stale   map[string]time.Time
	peers   map[string]*peer // by token
}

func newMux(nc *nats.Conn, cfg Config, out, in string, metrics *Metrics, log *zap.Logger) (*mux, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("tunnel config: %w", err)
	}
	cfg, log = cfg.withDefaults(), log.Named("tunnel")
	return &mux{
		nc: nc, cfg: cfg, metrics: metrics, log: log, sendPrefix: out, receivePrefix: in,
		frames: newFramePublisher(nc, log), growth: stream.NewPool(cfg.Pool, nil), ready: make(chan struct{}),
		streams: map[string]*Conn{}, stale: map[string]time.Time{}, peers: map[string]*peer{},
	}, nil
}

// subscription is a subject and the handler of its messages.
type subscription struct {
	subject string
	handle  nats.MsgHandler
}

// serveSubscriptions serves the subscriptions until ctx ends, then breaks all streams and tells their peers.
func (m *mux) serveSubscriptions(ctx context.Context, all ...subscription) error {
	var subs []*nats.Subscription
	var ended sync.WaitGroup // until the last handler has returned
	defer func() {
		for _, sub := range subs {
			if sub.Unsubscribe() != nil {
				return // the connection was closed, and the subscriptions with it
			}
		}
		ended.Wait()
		_ = m.nc.FlushTimeout(shutdownFlushTimeout) // without a link the last frames cannot be sent
	}()
	for _, s := range all {
		sub, err := m.nc.Subscribe(s.subject, s.handle)
		if err != nil {
			return fmt.Errorf("serve tunnels on %s: %w", s.subject, err)
		}
		ended.Add(1)
		sub.SetClosedHandler(func(string) { ended.Done() })
		subs = append(subs, sub)
		if err := sub.SetPendingLimits(-1, pendingBytes); err != nil {
			return fmt.Errorf("serve tunnels: %w", err)
		}
	}
	m.flushSubscriptions(ctx)
	m.mu.Lock()
	m.serving = true
	m.mu.Unlock()
	close(m.ready)
	m.maintainStreams(ctx)

	m.mu.Lock()
	m.serving = false
	m.mu.Unlock()
	for _, c := range m.listStreams() {
		c.breakStream(&BrokenError{Code: protocol.CodeStopping, Text: "the other end stops"}, true)
	}
	m.frames.sendQueuedFrames()
	return nil
}

// flushSubscriptions waits until this end's server knows the subscription, if there is a server: otherwise the first dial may find no
// subscriber.
func (m *mux) flushSubscriptions(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, shutdownFlushTimeout)
	defer cancel()
	if err := m.nc.FlushWithContext(ctx); err != nil {
		m.log.Debug("no server yet", zap.Error(err))
	}
}

func (m *mux) maintainStreams(ctx context.Context) {
	ticker := time.NewTicker(m.cfg.KeepAlive / ticksPerKeepAlive)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case l := <-m.frames.late:
			m.frames.sendLate(l)
		case now := <-ticker.C:
			for _, c := range m.listStreams() {
				c.checkTimeouts(now)
			}
			m.expireStale(now)
		}
	}
}

// listStreams returns the current streams.
func (m *mux) listStreams() []*Conn {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Values(m.streams))
}

// findStream returns a stream. stale reports that it ended lately.
func (m *mux) findStream(key string) (c *Conn, stale bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, stale = m.stale[key]
	return m.streams[key], stale
}

// addStream adds a stream, or returns the reason why there can be none.
func (m *mux) addStream(key string, target Addr, token, label string, dialed bool) (*Conn, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.serving {
		return nil, ErrNotServing
	}
	now := time.Now()
	p := m.ensurePeer(token)
	switch {
	case m.streams[key] != nil:
		return nil, errStreamExists
	case p.streams >= m.cfg.MaxStreams:
		return nil, ErrTooMany
	}
	p.streams++
	c := newConn(m, p, key, target, label, dialed, now)
	m.streams[key] = c
	m.metrics.streams.Inc()
	return c, nil
}

// ensurePeer returns the peer of a token. mu is held.
func (m *mux) ensurePeer(token string) *peer {
	p := m.peers[token]
	if p == nil {
		p = &peer{token: token, growth: stream.NewPool(m.cfg.NodePool, m.growth), silent: make(chan struct{})}
		m.peers[token] = p
	}
	return p
}

// removeStream removes a stream, once, and logs its lifetime. why is nil if this end closed it before it broke.
func (m *mux) removeStream(c *Conn, why *BrokenError) {
	m.mu.Lock()
	if m.streams[c.key] != c {
		m.mu.Unlock()
		return
	}
	delete(m.streams, c.key)
	if len(m.stale) < maxStale {
		m.stale[c.key] = time.Now()
	}
	c.peer.streams--
	m.mu.Unlock()

	m.metrics.streams.Dec()
	c.receiver.Release()
	if !c.state.Status().Opened() {
		return // the caller of Dial reports it
	}
	sent, _ := c.sender.Sent()
	received, _, _ := c.receiver.Received()
	fields := append(c.logFields(), zap.Duration("took", time.Since(c.startedAt)), zap.Uint64("sent", sent), zap.Uint64("received", received))
	if why != nil {
		m.metrics.countBroken(why.Code)
		fields = append(fields, zap.Error(why))
	}
	m.log.Info("tunnel closed", fields...)
}

// declineStream ends a stream that was not accepted yet.
func (m *mux) declineStream(c *Conn, code protocol.Code, text string) {
	if c.state.Status().Pending() {
		m.metrics.countRefused(code)
		m.log.Info("tunnel refused", append(c.logFields(), zap.String("reason", text))...)
	}
	c.breakStream(&BrokenError{Code: code, Text: text}, true)
}

// expireStale drops expired entries.
func (m *mux) expireStale(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key, at := range m.stale {
		if now.Sub(at) > staleTTL {
			delete(m.stale, key)
		}
	}
	for token, p := range m.peers {
		if p.streams == 0 && now.After(p.silentUntil) {
			delete(m.peers, token)
		}
	}
}
