package localapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	// pipeBytes is the buffer of an in-memory connection in each direction; there is one connection a client pool.
	pipeBytes = 64 << 10
	// maxStreams is how many requests and watches one HTTP/2 connection may carry. A kubelet opens one watch for each
	// ConfigMap and Secret that its pods use.
	maxStreams = 8192
	// maxHeaderBytes bounds a request's headers; a kubelet's are below 1 KB.
	maxHeaderBytes = 16 << 10
	// headerTimeout is how long a client of a real listener may take to send its headers.
	headerTimeout = 10 * time.Second
	// idleTimeout ends connections that a local program left open.
	idleTimeout = 2 * time.Minute
	// defaultMaxRequestBytes is the apiserver's own limit of a request body.
	defaultMaxRequestBytes = 3 << 20
	// defaultBookmarkEvery is the apiserver's own period.
	defaultBookmarkEvery = time.Minute
	// attachWait is how long a list waits for the first attach before it answers 503. Lists of a fresh gateway then end
	// with the attach, and not with a client's backoff of up to 30 s.
	attachWait = 20 * time.Second
	// attachPoll is how often a waiting list looks whether the store has attached: rare, short, and only on first start.
	attachPoll = 100 * time.Millisecond
)

// Config says who the gateway is and where else than in memory it listens.
type Config struct {
	// Node is the gateway's node name.
	Node string
	// UnixSocket is the path of a socket for programs of the same user; "" for none. Its folder must exist.
	UnixSocket string
	// Address is a loopback address with port for TLS with client certificates; "" for none.
	Address string
	// CertFile, KeyFile and ClientCAFile are PEM files for Address, read at New.
	CertFile, KeyFile, ClientCAFile string
	// MaxRequestBytes limits a request's body; 0 is 3 MiB, as in an apiserver.
	MaxRequestBytes int64
	// BookmarkEvery is how often an idle watch is told how far the store is, with up to as much again at random; 0 is 1 min.
	BookmarkEvery time.Duration
	// Kubelet is the node's own kubelet, for logs and commands on the unix socket.
	Kubelet KubeletPort
	// Stopper restarts containers on the unix socket; nil: refused.
	Stopper Stopper
}

// Validate names each field that cannot work.
func (c Config) Validate() error {
	var errs []error
	if c.Node == "" {
		errs = append(errs, errors.New("config: Node is missing"))
	}
	if c.Address != "" {
		host, _, err := net.SplitHostPort(c.Address)
		if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
			errs = append(errs, fmt.Errorf("config: Address %q is not a loopback address with port", c.Address))
		}
		if c.CertFile == "" || c.KeyFile == "" || c.ClientCAFile == "" {
			errs = append(errs, errors.New("config: CertFile, KeyFile and ClientCAFile are all needed with Address"))
		}
	}
	if c.MaxRequestBytes < 0 {
		errs = append(errs, errors.New("config: MaxRequestBytes is negative"))
	}
	if c.BookmarkEvery < 0 {
		errs = append(errs, errors.New("config: BookmarkEvery is negative"))
	}
	return errors.Join(errs...)
}

// Server is the local Kubernetes API. Make it with New, run it with Start.
type Server struct {
	cfg      Config
	store    *store.Store
	upstream Upstream
	reporter Reporter
	log      *zap.Logger
	absences *absences
	tokens   *tokens
	locks    *locks
	kubelet  *kubeletWay
	pages    pages
	routes   *routes
	pipe     *bufconn.Listener
	client   *http.Transport
	tls      *tls.Config // nil without Address
	ready    chan struct{}

	mu      sync.Mutex // guards all below
	renewed time.Time
	tlsAddr string
}

// New prepares the server. Nothing listens before Start, but a client from ClientConfig may connect and will wait.
func New(cfg Config, st *store.Store, up Upstream, rep Reporter, log *zap.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("local api: %w", err)
	}
	if cfg.MaxRequestBytes == 0 {
		cfg.MaxRequestBytes = defaultMaxRequestBytes
	}
	if cfg.BookmarkEvery == 0 {
		cfg.BookmarkEvery = defaultBookmarkEvery
	}
	log = log.Named("localapi")
	s := &Server{
		cfg: cfg, store: st, upstream: up, reporter: rep, log: log,
		absences: newAbsences(st, log),
		tokens:   &tokens{store: st, log: log},
		locks:    newLocks(),
		kubelet:  newKubeletWay(cfg.Kubelet, log),
		pipe:     bufconn.Listen(pipeBytes),
		ready:    make(chan struct{}),
	}
	s.client = s.newTransport()
	var err error
	if s.routes, err = s.newRoutes(); err != nil {
		return nil, fmt.Errorf("local api: %w", err)
	}
	if cfg.Address != "" {
		if s.tls, err = tlsConfig(cfg); err != nil {
			return nil, fmt.Errorf("local api: %w", err)
		}
	}
	return s, nil
}

func tlsConfig(cfg Config) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(cfg.CertFile, cfg.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("load serving certificate: %w", err)
	}
	ca, err := os.ReadFile(cfg.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("load client CA: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return nil, fmt.Errorf("load client CA: no certificate in %s", cfg.ClientCAFile)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{cert}, ClientCAs: pool,
		ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	}, nil
}

// Ready is closed when every listener is open.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Start serves until ctx ends, then ends all watches, waits for all requests, and returns nil.
func (s *Server) Start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	defer s.client.CloseIdleConnections()
	memory := s.newHTTP(gctx)
	memory.Protocols = new(http.Protocols)
	memory.Protocols.SetUnencryptedHTTP2(true)
	memory.Protocols.SetHTTP1(true)
	// Idle connections of our own clients end at once; HTTP/2's polite goodbye would take a second.
	memory.RegisterOnShutdown(s.client.CloseIdleConnections)
	serve(gctx, g, memory, s.pipe)
	if err := s.listenUnix(gctx, g); err != nil {
		_ = s.pipe.Close()
		return err
	}
	if err := s.listenTLS(gctx, g); err != nil {
		_ = s.pipe.Close()
		return err
	}
	close(s.ready)
	s.log.Info("local api ready", zap.String("socket", s.cfg.UnixSocket), zap.String("address", s.Addr()))
	err := g.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Server) listenUnix(ctx context.Context, g *errgroup.Group) error {
	if s.cfg.UnixSocket == "" {
		return nil
	}
	// A socket file left by a killed process keeps its name taken; nobody else may own this one.
	if err := os.Remove(s.cfg.UnixSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := listenPrivate(ctx, s.cfg.UnixSocket)
	if err != nil {
		return fmt.Errorf("listen on socket: %w", err)
	}
	serve(ctx, g, s.newHTTP(ctx), listener)
	return nil
}

// listenPrivate opens the socket under a name in a folder that only we can enter, narrows its mode, and then moves it to
// its place: nobody else can connect in between.
func listenPrivate(ctx context.Context, path string) (net.Listener, error) {
	dir, err := os.MkdirTemp(filepath.Dir(path), ".s")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	temporary := filepath.Join(dir, "s")
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", temporary)
	if err != nil {
		return nil, err
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(temporary, 0o600), os.Rename(temporary, path)); err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	return &socket{Listener: listener, path: path}, nil
}

// socket removes its file when it closes.
type socket struct {
	net.Listener
	path string
}

func (s *socket) Close() error {
	_ = os.Remove(s.path)
	return s.Listener.Close()
}

func (s *Server) listenTLS(ctx context.Context, g *errgroup.Group) error {
	if s.tls == nil {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.cfg.Address)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	s.mu.Lock()
	s.tlsAddr = listener.Addr().String()
	s.mu.Unlock()
	server := s.newHTTP(ctx)
	server.TLSConfig = s.tls
	g.Go(func() error {
		if err := server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", listener.Addr(), err)
		}
		return nil
	})
	closeWith(ctx, g, server)
	return nil
}

// Addr is where the TLS listener listens; "" without one or before Ready. With port 0 in Config.Address it tells the port.
func (s *Server) Addr() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tlsAddr
}

func (s *Server) newHTTP(ctx context.Context) *http.Server {
	return &http.Server{
		Handler:           s.routes,
		MaxHeaderBytes:    maxHeaderBytes,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		ErrorLog:          zap.NewStdLog(s.log.WithOptions(zap.IncreaseLevel(zap.WarnLevel))),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		BaseContext:       func(net.Listener) context.Context { return ctx },
	}
}

func serve(ctx context.Context, g *errgroup.Group, server *http.Server, listener net.Listener) {
	g.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", listener.Addr(), err)
		}
		return nil
	})
	closeWith(ctx, g, server)
}

// shutdownTimeout is for requests that still write to the store; watches end at once with their context.
const shutdownTimeout = 5 * time.Second

func closeWith(ctx context.Context, g *errgroup.Group, server *http.Server) {
	g.Go(func() error {
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			return server.Close()
		}
		return nil
	})
}

// newTransport makes the in-memory way to the server. All watches of a client share one connection, so that a watch costs
// a few goroutines' stacks and no buffers of its own.
func (s *Server) newTransport() *http.Transport {
	t := &http.Transport{
		DialContext:        s.dial,
		DisableCompression: true, // both ends are in one process
		Protocols:          new(http.Protocols),
	}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// ClientConfig returns a client's way to this server in memory, as the node itself. All clients share its transport, an
// *http.Transport that speaks HTTP/2 without TLS; clone it for one of your own, for example to close all its connections.
// Without the transport, Dial alone works too, at the price of one connection for each watch.
func (s *Server) ClientConfig() *rest.Config {
	return &rest.Config{Host: "http://localapi.frond", Transport: s.client, Dial: s.dial, QPS: -1}
}

func (s *Server) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return s.pipe.DialContext(ctx)
}

// LeaseRenewed tells when the kubelet last renewed the node's lease; zero if it has not since the start.
func (s *Server) LeaseRenewed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renewed
}

// leaseNamespace is where Kubernetes keeps node leases.
const leaseNamespace = "kube-node-lease"

func (s *Server) leaseSaved(key wire.Key) {
	if key.Namespace != leaseNamespace || key.Name != s.cfg.Node {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.renewed = time.Now()
}

// attached says whether the store has ever been in step with the cloud: from then on absence means something.
func (s *Server) attached() bool { return s.store.Cursor().StreamEpoch != "" }

func (s *Server) waitAttached(ctx context.Context) bool {
	if s.attached() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, attachWait)
	defer cancel()
	tick := time.NewTicker(attachPoll)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
			if s.attached() {
				return true
			}
		}
	}
}
