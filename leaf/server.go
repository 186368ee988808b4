package leaf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
)

// ErrNotRunning reports that the server has not started or has ended.
var ErrNotRunning = errors.New("leaf server is not running")

const (
	// reconnectWait is how often a client looks for a server that is being restarted.
	reconnectWait = 50 * time.Millisecond
	dirMode       = 0o700
)

// LocalInboxPrefix is the prefix of the inboxes of LocalConn. No hub lets a node subscribe to it.
const LocalInboxPrefix = "_LOCAL"

// Server is the NATS server of a node. Create it with New and call Start once.
type Server struct {
	cfg       Config
	log       *zap.Logger
	metrics   *linkMetrics
	disk      *diskReserve
	redialMax *redialMax
	ready     chan struct{}
	readyOnce sync.Once // closes ready
	// redialRequests holds a request for a new link.
	redialRequests chan struct{}
	// dial is the progress of the current dial.
	dial dialProgress
	// stops is the last announcement that a hub server stops.
	stops stopAnnouncement

	mu          sync.Mutex // guards all below
	nats        *server.Server
	link        LinkState
	linkChanged chan struct{} // closed and replaced at each change of link
	// problem is the reason why there is no link, as far as is known.
	problem error
}

// New checks the configuration. It starts and opens nothing.
func New(cfg Config, log *zap.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("leaf config: %w", err)
	}
	m, err := newMetrics(cfg.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	cfg, log = cfg.withDefaults(), log.Named("leaf")
	return &Server{
		cfg: cfg, log: log, metrics: m, disk: &diskReserve{dir: cfg.Dir, reserve: cfg.Reserve, metrics: m, log: log},
		redialMax: &redialMax{dir: cfg.Dir, configured: cfg.RedialMax, log: log},
		ready:     make(chan struct{}), linkChanged: make(chan struct{}), redialRequests: make(chan struct{}, 1), // one request is enough
	}, nil
}

// DiskSpace returns the last measurement, at most a second old.
func (s *Server) DiskSpace() DiskSpace { return s.disk.space() }

// FreeSpace measures how many bytes other programs may still use on the store's disk, now.
func (s *Server) FreeSpace() (int64, error) { return freeBytes(s.cfg.Dir) }

// SetRedialMax takes the longest pause between two dials that the cloud tells, at most five minutes, in place of a shorter
// Config.RedialMax. It outlives a restart.
func (s *Server) SetRedialMax(longest time.Duration) { s.redialMax.set(longest) }

// Ready closes when JetStream answers. It does not depend on the link.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Start runs the server until ctx ends, then shuts it down and returns nil when it is gone. An error means that it could not start or keep
// its store. When JetStream met a full disk and there is space again, Start restarts the server; clients reconnect by themselves.
func (s *Server) Start(ctx context.Context) error {
	if err := os.MkdirAll(s.cfg.Dir, dirMode); err != nil {
		return fmt.Errorf("store folder: %w", err)
	}
	s.redialMax.load()
	for {
		s.disk.measure()
		err := s.runServer(ctx, serverOptions(s.cfg))
		if ctx.Err() != nil {
			return nil //nolint:nilerr // we were asked to stop
		}
		if !errors.Is(err, errDiskFull) {
			return err
		}
		s.metrics.restarts.Inc()
		s.log.Warn("JetStream met a full disk, there is space again: starting the leaf server again")
	}
}

// runServer runs one nats-server.
func (s *Server) runServer(ctx context.Context, opts *server.Options) error {
	ns, err := server.NewServer(opts)
	if err != nil {
		return fmt.Errorf("make nats-server: %w", err)
	}
	bridge := &natsLogger{log: s.log.Named("nats"), fatal: make(chan error, 1), onError: s.setProblem, onNotice: s.dial.observeNotice}
	ns.SetLoggerV2(bridge, false, false, false)
	ns.Start() // does not block without a listener
	defer func() {
		s.setNATS(nil)
		if l := s.Link(); l.Up {
			s.setLink(LinkState{Since: time.Now(), Reconnects: l.Reconnects})
		}
		s.metrics.up.Set(0)
		ns.Shutdown()
		ns.WaitForShutdown()
	}()
	if err := s.awaitReady(ctx, ns, bridge.fatal); err != nil {
		return err
	}
	born := isUnhealthy(ns) // before any stream can be created: a stream in creation looks broken, too
	var sup *linkSupervisor
	if len(s.cfg.Hub) > 0 || s.cfg.Hubs != nil {
		sup = newLinkSupervisor(s.cfg, newRemoteDialer(ns, s.cfg), s, s.metrics, s.log)
		sup.state = s.Link() // of the previous server
		sup.beginDialling()  // before clients create streams: nats-server reads options for a new stream that a reload writes
	}
	s.setNATS(ns)
	s.readyOnce.Do(func() { close(s.ready) })
	s.log.Info("leaf server ready", zap.String("dir", s.cfg.Dir), zap.String("domain", opts.JetStreamDomain))

	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		select {
		case err := <-bridge.fatal:
			return err
		case <-gctx.Done():
			return nil
		}
	})
	g.Go(func() error { return s.disk.watch(gctx, ns, born) })
	if sup != nil {
		g.Go(func() error { return sup.run(gctx) })
	}
	return g.Wait()
}

// awaitReady waits until JetStream is enabled, which takes as long as the recovery of the streams.
func (s *Server) awaitReady(ctx context.Context, ns *server.Server, fatal <-chan error) error {
	// ReadyForConnections polls every 25 ms; short calls let ctx end the wait.
	const slice = 100 * time.Millisecond
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-fatal:
			return err
		default:
		}
		if ns.ReadyForConnections(slice) && ns.JetStreamEnabled() {
			return nil
		}
	}
}

func (s *Server) setNATS(ns *server.Server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nats = ns
}

// Conn returns a new client connection inside the process; the caller closes it. It survives cuts of the link, because it does not cross
// it. Its inboxes start with "_INBOX.<escaped node>", the only ones the hub lets this node subscribe to. opts are added to the defaults.
// Conn returns ErrNotRunning before Ready and after the end.
func (s *Server) Conn(name string, opts ...nats.Option) (*nats.Conn, error) {
	all := append([]nats.Option{
		nats.Name(name),
		nats.InProcessServer(s),
		nats.CustomInboxPrefix(InboxPrefix(s.cfg.Node)),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectWait), // the lookup costs a mutex
		nats.ReconnectJitter(0, 0),
		nats.ErrorHandler(logClientError(s.log)),
	}, opts...)
	nc, err := nats.Connect("", all...)
	if err != nil {
		return nil, fmt.Errorf("connect %s to the leaf server: %w", name, err)
	}
	return nc, nil
}

// LocalConn returns a connection like Conn, for requests that this server answers itself. The hub does not let the node subscribe to its
// inboxes, so they do not cross the link: each that does takes memory on every server of the hub.
func (s *Server) LocalConn(name string) (*nats.Conn, error) {
	return s.Conn(name, nats.CustomInboxPrefix(LocalInboxPrefix))
}

// InProcessConn connects a client to the current server. It returns ErrNotRunning while there is none.
func (s *Server) InProcessConn() (net.Conn, error) {
	s.mu.Lock()
	ns := s.nats
	s.mu.Unlock()
	if ns == nil {
		return nil, ErrNotRunning
	}
	return ns.InProcessConn()
}

// InboxPrefix returns the prefix of every reply subject of a node.
func InboxPrefix(node string) string { return nats.InboxPrefix + wire.Escape(node) }
