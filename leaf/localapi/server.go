package localapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/access"
	"github.com/frond-edge/frond/leaf/localapi/admin"
	"github.com/frond-edge/frond/leaf/localapi/auth"
	"github.com/frond-edge/frond/leaf/localapi/catalog"
	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/completeness"
	"github.com/frond-edge/frond/leaf/localapi/demand"
	"github.com/frond-edge/frond/leaf/localapi/discovery"
	"github.com/frond-edge/frond/leaf/localapi/forward"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/limit"
	"github.com/frond-edge/frond/leaf/localapi/listen"
	"github.com/frond-edge/frond/leaf/localapi/localca"
	"github.com/frond-edge/frond/leaf/localapi/nodewrite"
	"github.com/frond-edge/frond/leaf/localapi/objectstore"
	"github.com/frond-edge/frond/leaf/localapi/podproxy"
	"github.com/frond-edge/frond/leaf/localapi/query"
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/localapi/relay"
	"github.com/frond-edge/frond/leaf/store"
)

const (
	// defaultMaxRequestBytes is the apiserver's own limit of a request body.
	defaultMaxRequestBytes = 3 << 20
	// defaultBookmarkEvery is the apiserver's own period.
	defaultBookmarkEvery = time.Minute
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
	Pods listen.PodsConfig
	// TokenExpiryGrace is access.Config.ExpiryGrace.
	TokenExpiryGrace time.Duration
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
	Stopper admin.ContainerStopper
	// Devices serves deviceview.Path on the unix socket; nil: this gateway has no part for devices.
	Devices http.Handler
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

// setDefaults fills in the fields that may be zero.
func (c *Config) setDefaults() {
	if c.MaxRequestBytes == 0 {
		c.MaxRequestBytes = defaultMaxRequestBytes
	}
	if c.BookmarkEvery == 0 {
		c.BookmarkEvery = defaultBookmarkEvery
	}
	if c.Online == nil {
		c.Online = func() bool { return true }
	}
}

// Server is the local Kubernetes API. Create it with New, run it with Start.
type Server struct {
	cfg             Config
	log             *zap.Logger
	scopes          *demand.Tracker
	writers         *nodewrite.Writers
	relays          *relay.Relays
	openWatches     *auth.Watches
	podCertificates *records.PodCertificates
	listeners       *listen.Listeners
	pods            *listen.Pods // nil if pods are not served
	ready           chan struct{}
}

// New prepares the server. Nothing listens before Start, but a client from ClientConfig may connect and will wait.
func New(cfg Config, st *store.Store, up cloudcall.Upstream, rep nodewrite.Reporter, log *zap.Logger) (*Server, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("local api: %w", err)
	}
	cfg.setDefaults()
	s, err := newServer(cfg, st, up, rep, log.Named("localapi"))
	if err != nil {
		return nil, fmt.Errorf("local api: %w", err)
	}
	return s, nil
}

// newServer puts the parts together, from those that others need to the listeners.
func newServer(cfg Config, st *store.Store, up cloudcall.Upstream, rep nodewrite.Reporter, log *zap.Logger) (*Server, error) {
	s := &Server{
		cfg: cfg, log: log, scopes: demand.New(st, cfg.ScopeGrace, log), podCertificates: records.NewPodCertificates(st, log),
		ready: make(chan struct{}),
	}
	metrics := newMetrics(cfg.Metrics, s.scopes.Count, func() float64 { return float64(len(s.PodAddresses())) })
	cloud, limits, tokens := cloudcall.New(up), limit.New(), records.NewTokens(st, log)
	complete := completeness.New(cfg.Node, st, s.scopes)
	s.writers = nodewrite.New(cfg.Node, cloud, rep, complete)
	s.relays = relay.New(cloud, cfg.Online, cfg.LinkBudget, limits)
	gate := auth.NewGate(cfg.Node,
		access.NewTokenAuthenticator(access.Config{Node: cfg.Node, ExpiryGrace: cfg.TokenExpiryGrace, IsNewest: tokens.IsNewest}, st),
		access.NewAuthorizer(cfg.Node, st, func() bool { return hasTokenKeys(st) }), log)
	s.openWatches = auth.NewWatches(st, gate, metrics.revokedWatches.Inc)
	decorate := &decorator{node: cfg.Node, store: st, podAddress: cfg.Pods.Address}
	var ca *localca.CA
	var err error
	if cfg.Pods.Dir != "" {
		if ca, err = localca.Open(cfg.Pods.Dir, cfg.Node); err != nil {
			return nil, err
		}
		decorate.caPEM = ca.CertPEM
	}
	table := &routeTable{
		maxBytes: cfg.MaxRequestBytes, store: objectstore.Persistent{Store: st}, catalog: catalog.New(st, cloud, cfg.Online, log),
		readers: query.New(cfg.Node, cfg.BookmarkEvery, cloud, records.NewAbsences(st, log), complete, limits),
	}
	if err := table.addNodeRoutes(kinds.Served(), decorate, s.writers); err != nil {
		return nil, err
	}
	handler := &routes{
		log: log, metrics: metrics, gate: gate, openWatches: s.openWatches, limits: limits, table: table,
		forwarder: forward.New(cfg.MaxRequestBytes, st, cloud, tokens, gate, log), kubelet: podproxy.New(cfg.Kubelet, st, log),
		csrs: relay.NewCSRWatcher(cloud, cfg.Online), store: st, admin: admin.New(st, cfg.Stopper, cfg.Devices), discovery: discovery.Of(kinds.Served()),
		scopes: s.scopes, complete: complete, relays: s.relays, online: cfg.Online,
	}
	s.listeners, err = listen.New(listen.Config{
		UnixSocket: cfg.UnixSocket, Address: cfg.Address, CertFile: cfg.CertFile, KeyFile: cfg.KeyFile, ClientCAFile: cfg.ClientCAFile,
	}, handler, log)
	if err != nil {
		return nil, err
	}
	if ca != nil {
		s.pods = listen.NewPods(cfg.Node, cfg.Pods, ca, st, handler, log)
	}
	return s, nil
}

// hasTokenKeys reports whether the cloud has ever sent the keys and roles to this gateway: both come together.
func hasTokenKeys(st *store.Store) bool {
	_, err := st.Get(wire.TokenKeysKey())
	return err == nil
}

// Ready is closed when every listener is open.
func (s *Server) Ready() <-chan struct{} { return s.ready }

// Start serves until ctx ends, then ends all watches, waits for all requests, and returns nil.
func (s *Server) Start(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	defer s.listeners.CloseIdleConnections()
	if err := s.listeners.Serve(gctx, g); err != nil {
		return err
	}
	g.Go(func() error { return s.scopes.Run(gctx) })
	g.Go(func() error { return s.openWatches.Run(gctx) })
	if s.pods != nil {
		s.pods.SyncListeners(gctx) // before any pod starts; Run retries failures
		g.Go(func() error { return s.pods.Run(gctx) })
	}
	close(s.ready)
	s.log.Info("local api ready", zap.String("socket", s.cfg.UnixSocket), zap.String("address", s.Addr()))
	err := g.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// ClientConfig returns the configuration of an in-memory client of this server, as the node itself. All clients share its
// transport, an *http.Transport that speaks HTTP/2 without TLS. Clone it for a transport of your own, for example to close
// all its connections. Without the transport, Dial alone works too, at the cost of one connection for each watch.
func (s *Server) ClientConfig() *rest.Config { return s.listeners.ClientConfig() }

// Addr returns the address of the TLS listener; "" without one or before Ready. With port 0 in Config.Address it has the actual port.
func (s *Server) Addr() string { return s.listeners.Addr() }

// PodAddresses lists the addresses on which pods are served now, sorted.
func (s *Server) PodAddresses() []netip.AddrPort {
	if s.pods == nil {
		return nil
	}
	return s.pods.Addresses()
}

// LeaseRenewed returns when the kubelet last renewed the node's lease; zero if it has not since the start.
func (s *Server) LeaseRenewed() time.Time { return s.writers.LeaseRenewed() }

// LockKey waits for an object's write lock and acquires it: until release, no request writes or reports the object. Any
// other component that reports an object's present state must hold it: a report of a state that a request is about to
// replace would follow that request's own report, and the last report counts.
func (s *Server) LockKey(ctx context.Context, key wire.Key) (release func(), err error) {
	return s.writers.LockKey(ctx, key)
}

// SavePodCertificate stores the newest key and certificates of one projection of a pod, until the pod is gone. Both are
// PEM. Saving what is already stored costs no write.
func (s *Server) SavePodCertificate(ctx context.Context, namespace, pod, uid, projection string, key, chain []byte) error {
	return s.podCertificates.Save(ctx, namespace, pod, uid, projection, key, chain)
}

// LastPodCertificate returns the last saved key and certificates, expired or not, for use while the cloud cannot issue new
// ones. As with tokens, the pod has no better ones, and must run.
func (s *Server) LastPodCertificate(namespace, uid, projection string) (key, chain []byte, ok bool) {
	if s.cfg.Online() {
		return nil, nil, false
	}
	return s.podCertificates.Last(namespace, uid, projection)
}

// WantedScopes returns all scopes that programs of this gateway want to follow, each once with all its users, and a channel
// that is closed at the next change after this call.
func (s *Server) WantedScopes() (wants []wire.ScopeWant, changed <-chan struct{}) {
	return s.scopes.Wanted()
}

// ServicesByNeed reports whether WantedScopes contains the scopes on Services and EndpointSlices that programs of this gateway follow.
// The channel of WantedScopes is closed when it changes.
func (s *Server) ServicesByNeed() bool { return s.scopes.ServicesByNeed() }

// SetScopeVerdicts takes the cloud's verdicts on the scopes of WantedScopes. It does not block.
func (s *Server) SetScopeVerdicts(verdicts []wire.ScopeVerdict) { s.scopes.SetVerdicts(verdicts) }

// IsSecret selects the objects of the store that must not be readable on a disk: Secrets, the tokens of service accounts,
// and the keys of pods' certificates.
func IsSecret(key wire.Key) bool {
	if key.Group == records.Group {
		return key.Resource == records.TokenResource || key.Resource == records.PodCertificateResource
	}
	return key.Group == "" && key.Resource == "secrets"
}
