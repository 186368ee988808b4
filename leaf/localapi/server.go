package localapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/test/bufconn"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/access"
	"github.com/frond-edge/frond/leaf/localapi/auth"
	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/catalog"
	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/demand"
	"github.com/frond-edge/frond/leaf/localapi/limit"
	"github.com/frond-edge/frond/leaf/localapi/objectstore"
	"github.com/frond-edge/frond/leaf/localapi/podproxy"
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	// pipeBytes is the buffer of an in-memory connection in each direction; there is one connection per client pool.
	pipeBytes = 64 << 10
	// maxStreams limits the requests and watches of one HTTP/2 connection. A kubelet opens one watch for each ConfigMap and
	// Secret that its pods use.
	maxStreams = 8192
	// maxHeaderBytes limits a request's headers; a kubelet's are below 1 KB.
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
	// attachPoll is how often a waiting list checks whether the store has attached: rare, short, and only on first start.
	attachPoll = 100 * time.Millisecond
)

// Config holds the gateway's identity and its listeners beside the in-memory one.
type Config struct {
	// Node is the gateway's node name.
	Node string
	// UnixSocket is the path of a socket for programs of the same user; "" for none. Its folder must exist.
	UnixSocket string
	// Address is a loopback address with port for TLS with client certificates or tokens; "" for none.
	Address string
	// CertFile, KeyFile and ClientCAFile are PEM files for Address, read again for each connection.
	CertFile, KeyFile, ClientCAFile string
	// Pods configures access for the pods of this gateway.
	Pods PodsConfig
	// Metrics registers this package's metrics; nil for none.
	Metrics prometheus.Registerer
	// Online reports whether the cloud can be asked; nil: perhaps. It must not block.
	Online func() bool
	// LinkBudget returns how many bytes the link to the cloud accepts at a time; nil, or a result of 0: not known. It must not block.
	LinkBudget func() int
	// ScopeGrace is how long a kind is followed after its last program has left; 0 is 10 min.
	ScopeGrace time.Duration
	// MaxRequestBytes limits a request's body; 0 is 3 MiB, as in an apiserver.
	MaxRequestBytes int64
	// BookmarkEvery is how often an idle watch gets a bookmark, plus a random time of up to the same length; 0 is 1 min.
	BookmarkEvery time.Duration
	// Kubelet is the endpoint of the node's own kubelet, for logs and commands on the unix socket.
	Kubelet podproxy.Endpoint
	// Stopper stops containers for restarts on the unix socket; nil: refused.
	Stopper ContainerStopper
}

// Validate reports each faulty field.
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

// Server is the local Kubernetes API. Create it with New, run it with Start.
type Server struct {
	cfg             Config
	store           *store.Store
	cloud           *cloudcall.Client
	reporter        Reporter
	log             *zap.Logger
	absences        *records.Absences
	tokens          *records.Tokens
	keyLocks        *objectstore.KeyLocks
	kubeletProxy    *podproxy.Proxy
	continuations   continuations
	routes          *routes
	pipe            *bufconn.Listener
	transport       *http.Transport
	tls             *tls.Config // nil without Address
	gate            *auth.Gate
	podServer       *podServer // nil if pods are not served
	scopes          *demand.Tracker
	catalog         *catalog.Catalog
	limits          *limit.Limits
	listSlots       chan struct{} // a token for each list that is made for a program other than the node
	relaySlots      chan struct{} // a token for each relayed watch
	openWatches     *auth.Watches
	podCertificates *records.PodCertificates
	metrics         *serverMetrics
	ready           chan struct{}

	mu             sync.Mutex // guards all fields below
	leaseRenewedAt time.Time
	tlsAddr        string
}

// New prepares the server. Nothing listens before Start, but a client from ClientConfig may connect and will wait.
func New(cfg Config, st *store.Store, up cloudcall.Upstream, rep Reporter, log *zap.Logger) (*Server, error) {
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
		cfg: cfg, store: st, cloud: cloudcall.New(up), reporter: rep, log: log,
		absences:        records.NewAbsences(st, log),
		tokens:          records.NewTokens(st, log),
		keyLocks:        objectstore.NewKeyLocks(),
		limits:          limit.New(),
		listSlots:       make(chan struct{}, limit.MaxConcurrentLists),
		relaySlots:      make(chan struct{}, maxRelays),
		podCertificates: records.NewPodCertificates(st, log),
		kubeletProxy:    podproxy.New(cfg.Kubelet, st, log),
		pipe:            bufconn.Listen(pipeBytes),
		ready:           make(chan struct{}),
	}
	s.transport = s.newTransport()
	s.gate = auth.NewGate(cfg.Node,
		access.NewTokenAuthenticator(access.Config{Node: cfg.Node, ExpiryGrace: cfg.Pods.ExpiryGrace, IsNewest: s.tokens.IsNewest}, st),
		access.NewAuthorizer(cfg.Node, st, s.hasTokenKeys), log)
	s.scopes = demand.New(st, cfg.ScopeGrace, log)
	s.catalog = catalog.New(st, s.cloud, s.isOnline, log)
	var err error
	if s.metrics, err = newMetrics(cfg.Metrics, s.scopes.Count, func() float64 { return float64(len(s.PodAddresses())) }); err != nil {
		return nil, fmt.Errorf("local api: %w", err)
	}
	s.openWatches = auth.NewWatches(st, s.gate, s.metrics.revokedWatches.Inc)
	if cfg.Address != "" {
		if s.tls, err = tlsConfig(cfg); err != nil {
			return nil, fmt.Errorf("local api: %w", err)
		}
	}
	if cfg.Pods.Dir != "" {
		if s.podServer, err = newPodServer(s); err != nil {
			return nil, fmt.Errorf("local api: %w", err)
		}
	}
	if s.routes, err = s.newRoutes(); err != nil {
		return nil, fmt.Errorf("local api: %w", err)
	}
	return s, nil
}

// Ready is closed when every listener is open.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Start serves until ctx ends, then ends all watches, waits for all requests, and returns nil.
func (s *Server) Start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	defer s.transport.CloseIdleConnections()
	memory := s.newHTTPServer(caller.WithListener(gctx, caller.Kubelet))
	memory.Protocols = new(http.Protocols)
	memory.Protocols.SetUnencryptedHTTP2(true)
	memory.Protocols.SetHTTP1(true)
	// Idle connections of this process's clients end at once; HTTP/2's GOAWAY would take a second.
	memory.RegisterOnShutdown(s.transport.CloseIdleConnections)
	serveListener(gctx, g, memory, s.pipe)
	if err := s.listenUnix(gctx, g); err != nil {
		_ = s.pipe.Close()
		return err
	}
	if err := s.listenTLS(gctx, g); err != nil {
		_ = s.pipe.Close()
		return err
	}
	g.Go(func() error { return s.scopes.Run(gctx) })
	g.Go(func() error { return s.openWatches.Run(gctx) })
	if s.podServer != nil {
		s.podServer.syncListeners(gctx) // before any pod starts; run retries failures
		g.Go(func() error { return s.podServer.run(gctx) })
	}
	close(s.ready)
	s.log.Info("local api ready", zap.String("socket", s.cfg.UnixSocket), zap.String("address", s.Addr()))
	err := g.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// newTransport returns the in-memory transport to the server. All watches of a client share one connection, so that a watch
// costs a few goroutines' stacks and no buffers of its own.
func (s *Server) newTransport() *http.Transport {
	t := &http.Transport{
		DialContext:        s.dial,
		DisableCompression: true, // both ends are in one process
		Protocols:          new(http.Protocols),
	}
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}

// ClientConfig returns the configuration of an in-memory client of this server, as the node itself. All clients share its
// transport, an *http.Transport that speaks HTTP/2 without TLS. Clone it for a transport of your own, for example to close
// all its connections. Without the transport, Dial alone works too, at the cost of one connection for each watch.
func (s *Server) ClientConfig() *rest.Config {
	return &rest.Config{Host: "http://localapi.frond", Transport: s.transport, Dial: s.dial, QPS: -1}
}

func (s *Server) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return s.pipe.DialContext(ctx)
}

// LeaseRenewed returns when the kubelet last renewed the node's lease; zero if it has not since the start.
func (s *Server) LeaseRenewed() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leaseRenewedAt
}

// leaseNamespace is the namespace of Kubernetes' node leases.
const leaseNamespace = "kube-node-lease"

func (s *Server) recordLeaseRenewal(key wire.Key) {
	if key.Namespace != leaseNamespace || key.Name != s.cfg.Node {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leaseRenewedAt = time.Now()
}

// hasTokenKeys reports whether the cloud has ever sent the keys and roles to this gateway: both come together.
func (s *Server) hasTokenKeys() bool {
	_, err := s.store.Get(wire.TokenKeysKey())
	return err == nil
}

func (s *Server) isOnline() bool { return s.cfg.Online == nil || s.cfg.Online() }

// isAttached reports whether the store has ever been in sync with the cloud: from then on absence proves something.
func (s *Server) isAttached() bool { return s.store.Cursor().StreamEpoch != "" }

func (s *Server) waitAttached(ctx context.Context) bool {
	if s.isAttached() {
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
			if s.isAttached() {
				return true
			}
		}
	}
}
