package tunnel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// Server is a node's end of the tunnel. Create it with NewServer and call Start once.
type Server struct {
	mux   *mux
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
	m, err := newMux(nc, cfg, protocol.UpPrefix, protocol.DownPrefix, metrics, log)
	if err != nil {
		return nil, err
	}
	return &Server{mux: m, node: node, token: wire.Escape(node), ports: map[uint16]*Listener{}}, nil
}

// Start serves until ctx ends, then breaks all streams, closes the Listeners and returns nil.
func (s *Server) Start(ctx context.Context) error {
	_, subject := protocol.Permissions(s.node)
	err := s.mux.serveSubscriptions(ctx, subscription{subject, s.handleMessage})
	s.portsMu.Lock()
	all := slices.Collect(maps.Values(s.ports))
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
func (s *Server) Ready() <-chan struct{} { return s.mux.ready }

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
		waiting: make(chan *Conn, s.mux.cfg.Backlog), // Backlog is the size of this buffer
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
	token, key, ok := protocol.ParseSubject(protocol.DownPrefix, msg.Subject)
	if !ok || token != s.token {
		s.mux.metrics.countRefused(protocol.CodeGarbage)
		return
	}
	c, stale := s.mux.findStream(key)
	f, err := protocol.ParseFrame(msg.Data)
	switch {
	case c != nil && (err != nil || !f.Kind.OpensStream()):
		c.handleMessage(msg)
	case c != nil:
		s.mux.metrics.countRefused(protocol.CodeExists) // the existing stream is not affected
	case errors.Is(err, protocol.ErrVersion):
		s.refuseStream(key, Addr{Node: s.node}, "", protocol.CodeVersion, err.Error())
	case err != nil:
		s.mux.metrics.countRefused(protocol.CodeGarbage)
	case stale: // it has sent its last frame
		s.mux.metrics.countRefused(protocol.CodeStale)
	case f.Kind.OpensStream():
		s.openStream(key, f)
	case f.Kind == protocol.KindData: // it belonged to another process
		s.mux.metrics.countRefused(protocol.CodeUnknown)
		s.mux.frames.queueFrame(s.mux.sendPrefix+s.token+"."+key, protocol.Reason{Code: protocol.CodeUnknown, Text: "the node does not know the stream"}.Frame(protocol.KindReset))
	default:
		s.mux.metrics.countRefused(protocol.CodeUnknown)
	}
}

// openStream queues a new stream for the port's Listener.
func (s *Server) openStream(key string, f protocol.Frame) {
	to, label, ok := protocol.ParseTarget(f)
	if !ok || f.Offset != 0 || f.Consumed != 0 || f.Flags != 0 {
		s.mux.metrics.countRefused(protocol.CodeGarbage)
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
		s.refuseStream(key, target, label, protocol.CodePort, missing)
		return
	}
	c, err := s.mux.addStream(key, target, s.token, label, false)
	switch {
	case errors.Is(err, ErrTooMany):
		s.refuseStream(key, target, label, protocol.CodeStreams, "too many streams")
		return
	case err != nil:
		s.refuseStream(key, target, label, protocol.CodeStopping, err.Error())
		return
	}
	_ = c.sender.Acknowledge(f) // it acknowledges nothing yet
	if !l.enqueue(c) {
		s.mux.declineStream(c, protocol.CodeBusy, "too many streams wait for the listener")
	}
}

// refuseStream answers an open request that never became a stream.
func (s *Server) refuseStream(key string, target Addr, label string, code protocol.Code, text string) {
	s.mux.metrics.countRefused(code)
	s.mux.log.Info("tunnel refused", append(target.logFields(), zap.String("user", label), zap.String("stream", key), zap.String("reason", text))...)
	s.mux.frames.queueFrame(s.mux.sendPrefix+s.token+"."+key, protocol.Reason{Code: code, Text: text}.Frame(protocol.KindRefuse))
}
