package tunnel

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

const (
	// ticksPerKeepAlive is how often each stream is checked per KeepAlive.
	ticksPerKeepAlive = 4
	// staleTTL is how long the end of a stream is remembered, so that its late frames are distinguished from garbage.
	staleTTL = time.Minute
	// maxStale bounds that memory; frames of streams beyond it count as unknown.
	maxStale = 1 << 14
	// maxLateFrames limits the frames that wait for the loop, because the dispatcher must not block. Further frames are dropped, and the
	// peer detects it by its PeerTimeout.
	maxLateFrames = 1024
	// pendingBytes may wait for the dispatcher, which only looks streams up; beyond it NATS drops messages, and streams break.
	pendingBytes = 256 << 20
	// shutdownFlushTimeout bounds the sending of the last frames.
	shutdownFlushTimeout = time.Second
)

// mux is the common part of Dialer and Server: the streams of a process, by key, over one subscription.
type mux struct {
	nc                        *nats.Conn
	cfg                       Config
	metrics                   *Metrics
	log                       *zap.Logger
	sendPrefix, receivePrefix string // subject prefixes
	buffers                   sync.Pool
	lateQueue                 chan lateFrame
	windowGrowth              atomic.Int64 // growth of all windows beyond their initial size, in bytes
	ready                     chan struct{}

	mu      sync.Mutex // guards all below; taken after a Conn's mu
	serving bool
	streams map[string]*Conn
	stale   map[string]time.Time
	peers   map[string]*peer // by token
}

// peer is a node that has streams or was found silent lately.
type peer struct {
	token        string
	windowGrowth atomic.Int64 // growth of its windows beyond their initial size, in bytes
	lastReceived atomic.Int64 // Unix nanoseconds
	minRoundTrip atomic.Int64 // shortest measured round trip

	streams     int           // guarded by mux.mu
	silentUntil time.Time     // guarded by mux.mu
	silent      chan struct{} // closed and replaced when a Dial found the node silent; guarded by mux.mu
}

func newPeer(token string) *peer { return &peer{token: token, silent: make(chan struct{})} }

// lateFrame is a frame that the loop sends for the dispatcher.
type lateFrame struct {
	subject string
	frame   frame
}

func newMux(nc *nats.Conn, cfg Config, out, in string, metrics *Metrics, log *zap.Logger) (*mux, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("tunnel config: %w", err)
	}
	return &mux{
		nc: nc, cfg: cfg.withDefaults(), metrics: metrics, log: log.Named("tunnel"), sendPrefix: out, receivePrefix: in,
		buffers:   sync.Pool{New: func() any { b := make([]byte, 0, headerSize+maxPayload); return &b }},
		lateQueue: make(chan lateFrame, maxLateFrames), ready: make(chan struct{}),
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
		c.breakStream(&BrokenError{Code: CodeStopping, Text: "the other end stops"}, true)
	}
	m.sendQueuedFrames()
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
		case l := <-m.lateQueue:
			m.sendFrame(l)
		case now := <-ticker.C:
			for _, c := range m.listStreams() {
				c.checkTimeouts(now)
			}
			m.expireStale(now)
		}
	}
}

// queueFrame queues a frame for the loop to send; for callers that must not block.
func (m *mux) queueFrame(subject string, f frame) {
	select {
	case m.lateQueue <- lateFrame{subject: subject, frame: f}:
	default:
	}
}

// sendQueuedFrames sends the queued frames.
func (m *mux) sendQueuedFrames() {
	for {
		select {
		case l := <-m.lateQueue:
			m.sendFrame(l)
		default:
			return
		}
	}
}

func (m *mux) sendFrame(l lateFrame) {
	if err := m.publishFrame(l.subject, "", l.frame); err != nil {
		m.log.Debug("frame not sent", zap.Error(err))
	}
}

func (m *mux) publishFrame(subject, back string, f frame) error {
	buf := m.buffers.Get().(*[]byte)
	defer m.buffers.Put(buf)
	*buf = appendFrame((*buf)[:0], f)
	if back == "" {
		return m.nc.Publish(subject, *buf)
	}
	return m.nc.PublishRequest(subject, back, *buf)
}

// listStreams returns the current streams.
func (m *mux) listStreams() []*Conn {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*Conn, 0, len(m.streams))
	for _, c := range m.streams {
		list = append(list, c)
	}
	return list
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
	p := m.peers[token]
	if p == nil {
		p = newPeer(token)
		m.peers[token] = p
	}
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

var errStreamExists = errors.New("the stream exists")

// removeStream removes a stream, once, and logs its lifetime. why is nil if it was closed in order.
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
	c.mu.Lock()
	open, sent, received := c.open, c.sent, c.received
	grown := int64(c.window.size - m.cfg.Window)
	c.mu.Unlock()
	m.windowGrowth.Add(-grown)
	c.peer.windowGrowth.Add(-grown)
	if !open {
		return // the caller of Dial reports it
	}
	fields := append(c.logFields(), zap.Duration("took", time.Since(c.startedAt)), zap.Uint64("sent", sent), zap.Uint64("received", received))
	if why != nil {
		m.metrics.countBroken(why.Code)
		fields = append(fields, zap.Error(why))
	}
	m.log.Info("tunnel closed", fields...)
}

// logFields are the fields that identify a stream in logs.
func (c *Conn) logFields() []zap.Field {
	return append(c.target.logFields(), zap.String("user", c.label), zap.String("stream", c.key))
}

// logFields are the fields that identify a target in logs.
func (a Addr) logFields() []zap.Field {
	fields := []zap.Field{zap.String("node", a.Node), zap.Uint16("port", a.Port)}
	if a.Address.IsValid() {
		fields = append(fields, zap.Stringer("address", a.Address))
	}
	return fields
}

// growWindow reserves up to want bytes from the pools for a window. It takes no lock.
func (m *mux) growWindow(p *peer, want int) int {
	if reserveBytes(&p.windowGrowth, want, m.cfg.NodePool) {
		if reserveBytes(&m.windowGrowth, want, m.cfg.Pool) {
			return want
		}
		p.windowGrowth.Add(-int64(want))
	}
	return 0
}

func reserveBytes(pool *atomic.Int64, want, limit int) bool {
	if pool.Add(int64(want)) <= int64(limit) {
		return true
	}
	pool.Add(-int64(want))
	return false
}

// recordRoundTrip records a measured round trip and returns the shortest one of the peer: a longer one includes time in queues.
func (m *mux) recordRoundTrip(p *peer, measured time.Duration) time.Duration {
	measured = max(measured, 1)
	for {
		least := p.minRoundTrip.Load()
		if least != 0 && time.Duration(least) <= measured {
			return time.Duration(least)
		}
		if p.minRoundTrip.CompareAndSwap(least, int64(measured)) {
			return measured
		}
	}
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

func portText(port uint16) string { return strconv.Itoa(int(port)) }
