package tunnel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// Server is a node's end of the tunnel. Create it with NewServer and call Start once.
type Server struct {
	*mux
	node  string
	token string

	portsMu sync.Mutex // guards all below; taken before mux.mu
	ports   map[uint16]*Listener
	// addresses receives the streams to addresses; nil: none is offered.
	addresses *Listener
}

// NewServer returns the end of a node. It starts nothing and offers no port.
func NewServer(node string, nc *nats.Conn, cfg Config, metrics *Metrics, log *zap.Logger) (*Server, error) {
	if node == "" {
		return nil, errors.New("tunnel server: node is empty")
	}
	m, err := newMux(nc, cfg, upPrefix, downPrefix, metrics, log)
	if err != nil {
		return nil, err
	}
	return &Server{mux: m, node: node, token: wire.Escape(node), ports: map[uint16]*Listener{}}, nil
}

// Start serves until ctx ends, then breaks all streams, closes the Listeners and returns nil.
func (s *Server) Start(ctx context.Context) error {
	_, subject := Permissions(s.node)
	err := s.serveSubscriptions(ctx, subscription{subject, s.handleMessage})
	s.portsMu.Lock()
	all := make([]*Listener, 0, len(s.ports))
	for _, l := range s.ports {
		all = append(all, l)
	}
	if s.addresses != nil {
		all = append(all, s.addresses)
	}
	s.portsMu.Unlock()
	for _, l := range all {
		_ = l.Close() // already closed elsewhere: as good
	}
	return err
}

// Ready closes when the node can be dialled.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Listen offers a port until the Listener is closed. It may be called before Start. A port has one Listener.
func (s *Server) Listen(port uint16) (*Listener, error) {
	s.portsMu.Lock()
	defer s.portsMu.Unlock()
	if s.ports[port] != nil {
		return nil, fmt.Errorf("listen on tunnel port %d: it has a listener", port)
	}
	l := s.newListener(Addr{Node: s.node, Port: port})
	s.ports[port] = l
	return l, nil
}

// ListenAddresses offers streams to addresses (Dialer.DialAddress) until the Listener is closed. Its user must check each Incoming.Target
// before it accepts: the cloud may request any address. There is one such Listener.
func (s *Server) ListenAddresses() (*Listener, error) {
	s.portsMu.Lock()
	defer s.portsMu.Unlock()
	if s.addresses != nil {
		return nil, errors.New("listen on tunnel addresses: they have a listener")
	}
	s.addresses = s.newListener(Addr{Node: s.node})
	return s.addresses, nil
}

func (s *Server) newListener(addr Addr) *Listener {
	return &Listener{
		server: s, addr: addr,
		waiting: make(chan *Conn, s.cfg.Backlog), // Backlog is the size of this buffer
		closed:  make(chan struct{}),
	}
}

// removeListener withdraws the offer of a Listener.
func (s *Server) removeListener(l *Listener) {
	s.portsMu.Lock()
	defer s.portsMu.Unlock()
	if s.addresses == l {
		s.addresses = nil
		return
	}
	delete(s.ports, l.addr.Port)
}

// handleMessage handles the messages of the cloud.
func (s *Server) handleMessage(msg *nats.Msg) {
	token, key, ok := parseSubject(downPrefix, msg.Subject)
	if !ok || token != s.token {
		s.metrics.countRefused(codeGarbage)
		return
	}
	c, stale := s.findStream(key)
	f, err := parseFrame(msg.Data)
	switch {
	case c != nil && (err != nil || !f.kind.opensStream()):
		c.handleMessage(msg)
	case c != nil:
		s.metrics.countRefused(CodeExists) // the existing stream is not affected
	case errors.Is(err, errVersion):
		s.refuseStream(key, Addr{Node: s.node}, "", CodeVersion, err.Error())
	case err != nil:
		s.metrics.countRefused(codeGarbage)
	case f.kind.opensStream() && !stale:
		s.openStream(key, f)
	case f.kind == kindData && !stale: // it belonged to another process; a stream that ended lately has sent its last frame
		s.metrics.countRefused(CodeUnknown)
		s.queueFrame(s.sendPrefix+s.token+"."+key, frame{kind: kindReset, payload: reasonPayload(CodeUnknown, "the node does not know the stream")})
	default:
		s.metrics.countRefused(unknownCode(stale))
	}
}

func unknownCode(stale bool) Code {
	if stale {
		return codeStale
	}
	return CodeUnknown
}

// openStream queues a new stream for the port's Listener.
func (s *Server) openStream(key string, f frame) {
	to, label, ok := parseTarget(f)
	if !ok || f.offset != 0 || f.consumed != 0 || f.flags != 0 {
		s.metrics.countRefused(codeGarbage)
		return
	}
	target := Addr{Node: s.node, Address: to.Addr(), Port: to.Port()}
	s.portsMu.Lock()
	defer s.portsMu.Unlock()
	l, missing := s.ports[to.Port()], fmt.Sprintf("nothing listens on port %d", to.Port())
	if target.Address.IsValid() {
		l, missing = s.addresses, "the node offers no addresses"
	}
	if l == nil {
		s.refuseStream(key, target, label, CodePort, missing)
		return
	}
	c, err := s.addStream(key, target, s.token, label, false)
	switch {
	case errors.Is(err, ErrTooMany):
		s.refuseStream(key, target, label, CodeStreams, "too many streams")
		return
	case err != nil:
		s.refuseStream(key, target, label, CodeStopping, err.Error())
		return
	}
	c.mu.Lock()
	c.updateCredit(f)
	c.mu.Unlock()
	if !l.enqueue(c) {
		s.declineStream(c, CodeBusy, "too many streams wait for the listener")
	}
}

// enqueue adds a stream to the backlog; if it is full, enqueue first removes the streams that the cloud gave up. The caller holds portsMu,
// so there is no other writer.
func (l *Listener) enqueue(c *Conn) bool {
	for try := range 2 {
		select {
		case l.waiting <- c:
			return true
		default:
		}
		if try > 0 {
			break
		}
		for range len(l.waiting) {
			select {
			case waits := <-l.waiting:
				if waits.isPending() {
					l.waiting <- waits // there is room: it was just received from the channel
				}
			default: // Accept drains the channel
			}
		}
	}
	return false
}

// refuseStream answers an open request that never became a stream.
func (s *Server) refuseStream(key string, target Addr, label string, code Code, text string) {
	s.metrics.countRefused(code)
	s.log.Info("tunnel refused", append(target.logFields(), zap.String("user", label), zap.String("stream", key), zap.String("reason", text))...)
	s.queueFrame(s.sendPrefix+s.token+"."+key, frame{kind: kindRefuse, payload: reasonPayload(code, text)})
}

// declineStream ends a stream that was not accepted yet.
func (m *mux) declineStream(c *Conn, code Code, text string) {
	if c.isPending() {
		m.metrics.countRefused(code)
		m.log.Info("tunnel refused", append(c.logFields(), zap.String("reason", text))...)
	}
	c.breakStream(&BrokenError{Code: code, Text: text}, true)
}

// Listener is a net.Listener on a node's port, or for addresses.
type Listener struct {
	server  *Server
	addr    Addr
	waiting chan *Conn

	closeOnce sync.Once
	closed    chan struct{} // closes with Close or when Start ends
}

// Incoming is a stream that the cloud requests. Call Accept or Refuse, within Config.OpenTimeout.
type Incoming struct{ conn *Conn }

// Next waits for a stream without accepting it, so that the node can connect onwards first. It returns net.ErrClosed after Close and after
// the end of the Server's Start.
func (l *Listener) Next() (*Incoming, error) {
	for {
		select {
		case <-l.closed:
			return nil, &net.OpError{Op: "accept", Net: l.addr.Network(), Addr: l.addr, Err: net.ErrClosed}
		case c := <-l.waiting:
			if c.isPending() { // otherwise the cloud gave up
				return &Incoming{conn: c}, nil
			}
		}
	}
}

// Accept waits for a stream and accepts it.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		in, err := l.Next()
		if err != nil {
			return nil, err
		}
		if c, err := in.Accept(); err == nil {
			return c, nil
		}
	}
}

// Close withdraws the port and refuses the streams that wait. Accepted ones continue.
func (l *Listener) Close() error {
	err := error(&net.OpError{Op: "close", Net: l.addr.Network(), Addr: l.addr, Err: net.ErrClosed})
	l.closeOnce.Do(func() {
		err = nil
		l.server.removeListener(l)
		close(l.closed)
		for {
			select {
			case c := <-l.waiting:
				l.server.declineStream(c, CodePort, fmt.Sprintf("port %d was closed", c.target.Port))
			default:
				return
			}
		}
	})
	return err
}

// Addr returns the Addr that the cloud dials.
func (l *Listener) Addr() net.Addr { return l.addr }

// Port is the port that the cloud dialled.
func (in *Incoming) Port() uint16 { return in.conn.target.Port }

// Target is the address and port that the cloud requests, for a Listener made by ListenAddresses.
func (in *Incoming) Target() netip.AddrPort {
	return netip.AddrPortFrom(in.conn.target.Address, in.conn.target.Port)
}

// Label is the user of the stream, as the cloud states.
func (in *Incoming) Label() string { return in.conn.label }

// Accept accepts the stream. It fails if the cloud has given up meanwhile.
func (in *Incoming) Accept() (*Conn, error) {
	c := in.conn
	c.sendMu.Lock()
	defer c.sendMu.Unlock()
	now := time.Now()
	c.mu.Lock()
	if c.err != nil || c.open {
		err := c.err
		c.mu.Unlock()
		if err == nil {
			err = errors.New("accepted twice")
		}
		return nil, c.wrapError("accept", err)
	}
	f := c.newFrame(kindAccept, nil)
	c.open = true
	c.acceptedAt, c.lastReceived, c.lastSent, c.lastPayload = now, now, now, now
	close(c.answered)
	c.mu.Unlock()
	if err := c.mux.publishFrame(c.sendSubject, "", f); err != nil {
		broken := &BrokenError{Code: CodeHub, Text: err.Error()}
		c.breakStream(broken, false)
		return nil, c.wrapError("accept", broken)
	}
	c.mux.metrics.opened.Inc()
	c.mux.log.Info("tunnel opened", append(c.logFields(), zap.Duration("took", now.Sub(c.startedAt)))...)
	return c, nil
}

// Refuse refuses the stream with a reason. The text reaches the caller of Dial.
func (in *Incoming) Refuse(text string) { in.conn.mux.declineStream(in.conn, CodeDeclined, text) }

// RefuseUnready refuses the stream for the moment, with a reason: the caller of Dial may ask again at once.
func (in *Incoming) RefuseUnready(text string) { in.conn.mux.declineStream(in.conn, CodeUnready, text) }
