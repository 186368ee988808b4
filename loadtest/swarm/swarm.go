package swarm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/hubca"
	"github.com/frond-edge/frond/loadtest/minileaf"
	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/outbox/memory"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

// maxFaults bounds the faults that are kept; all are counted.
const maxFaults = 20

// Config configures a Swarm.
type Config struct {
	// Run is the value of the label and of the taint on each Node.
	Run string
	// NodeName returns the name of a gateway's Node.
	NodeName func(index int) string
	// Hubs are the hub's leaf listeners, tls://host:port. A gateway dials one after the other.
	Hubs []string
	// Token is a bootstrap token of as many uses as there are gateways. CAHashes identify the hub's CA.
	Token    string
	CAHashes []string
	// Version is what heartbeats say of edgecore, KubeletVersion what Nodes say of the kubelet.
	Version, KubeletVersion string
	// AllServices: the gateways are sent all Services and EndpointSlices, as those with kube-proxy are.
	AllServices bool
	// OnApplied is called for each message that a gateway has stored, by any goroutine; it must not block. nil: no call.
	OnApplied func(node string, m wire.Message, at time.Time)
}

// Swarm is a set of simulated gateways.
type Swarm struct {
	cfg           Config
	log           *zap.Logger
	tls           *tls.Config
	addresses     []string
	metrics       *metrics.Metrics
	codec         *memory.Codec
	deliveryCodec *deliver.Codec
	counters      *minileaf.Counters
	// lobby counts the links that only enrolled a gateway.
	lobby *minileaf.Counters
	began metav1.Time
	// arriving passes new gateways to Start.
	arriving chan *Gateway
	dials    atomic.Uint64
	joined   atomic.Int64
	attaches atomic.Int64

	mu       sync.Mutex // guards all fields below
	gateways []*Gateway
	faults   []error
	faulty   int
}

// New finds the hub's CA by its hash and returns a swarm without gateways.
func New(ctx context.Context, cfg Config, log *zap.Logger) (*Swarm, error) {
	if len(cfg.Hubs) == 0 {
		return nil, errors.New("no address of a hub")
	}
	s := &Swarm{
		cfg: cfg, log: log, metrics: metrics.New(nil), counters: &minileaf.Counters{}, lobby: &minileaf.Counters{},
		began: metav1.NewTime(time.Now().UTC().Truncate(time.Second)), arriving: make(chan *Gateway),
	}
	var err error
	if s.codec, err = memory.NewCodec(); err != nil {
		return nil, err
	}
	if s.deliveryCodec, err = deliver.NewCodec(); err != nil {
		return nil, err
	}
	for _, hub := range cfg.Hubs {
		u, err := url.Parse(hub)
		if err != nil || u.Scheme != "tls" || u.Port() == "" {
			return nil, fmt.Errorf("hub %q: write tls://HOST:PORT; WebSocket is not simulated", hub)
		}
		s.addresses = append(s.addresses, u.Host)
	}
	roots, err := findRoots(ctx, cfg)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(s.addresses[0])
	if err != nil {
		return nil, fmt.Errorf("hub %s: %w", s.addresses[0], err)
	}
	s.tls = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13, ServerName: host}
	return s, nil
}

// findRoots returns the CA with one of the hashes, from the first hub that answers.
func findRoots(ctx context.Context, cfg Config) (*x509.CertPool, error) {
	var faults []error
	for _, hub := range cfg.Hubs {
		chain, err := hubca.FetchChain(ctx, hub, nil)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		ca, err := hubca.FindPinned(chain, hub, cfg.CAHashes)
		if err != nil {
			return nil, err
		}
		roots := x509.NewCertPool()
		roots.AddCert(ca)
		return roots, nil
	}
	return nil, fmt.Errorf("no hub answers: %w", errors.Join(faults...))
}

// Start runs the gateways that Join adds, until ctx ends, and returns nil after they have ended.
func (s *Swarm) Start(ctx context.Context) error {
	var group errgroup.Group
	for {
		select {
		case <-ctx.Done():
			return group.Wait()
		case g := <-s.arriving:
			group.Go(func() error {
				if err := g.run(ctx); err != nil && ctx.Err() == nil {
					s.recordFault(g.name, err)
				}
				return nil
			})
		}
	}
}

// Join adds gateways, with the next indexes from first, at a rate per second, and returns when the last has begun to join. began is called
// before that with each gateway and the time at which it was due; nil: no call.
func (s *Swarm) Join(ctx context.Context, first, count int, rate float64, began func(*Gateway, time.Time)) error {
	start := time.Now()
	for i := range count {
		due := start.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Until(due)):
		}
		g, err := newGateway(s, first+i)
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.gateways = append(s.gateways, g)
		s.mu.Unlock()
		if began != nil {
			began(g, due)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case s.arriving <- g:
		}
	}
	return nil
}

// Gateways returns all gateways.
func (s *Swarm) Gateways() []*Gateway {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.gateways)
}

// Counters returns what the gateways' links have moved.
func (s *Swarm) Counters() *minileaf.Counters { return s.counters }

// Joined returns how many gateways have joined.
func (s *Swarm) Joined() int { return int(s.joined.Load()) }

// Attaches returns how often gateways have attached: once for each link, and again when a delivery was interrupted.
func (s *Swarm) Attaches() int64 { return s.attaches.Load() }

// Faults returns how many faults the gateways had that are none of the cloud's refusals to wait out, and the first of them.
func (s *Swarm) Faults() (count int, first []error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faulty, slices.Clone(s.faults)
}

func (s *Swarm) recordFault(node string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.faulty++; len(s.faults) < maxFaults {
		s.faults = append(s.faults, fmt.Errorf("%s: %w", node, err))
		s.log.Warn("a gateway has a fault", zap.String("node", node), zap.Error(err))
	}
}

// recordClientError records what a client lost because a part did not read in time. A part that loses messages asks for them again; that the
// swarm was too slow must be known all the same, as its figures are then its own and not the cloud's.
func (s *Swarm) recordClientError(err error) {
	if err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		s.recordFault("client", err)
	}
}

// nextHub returns the address to dial.
func (s *Swarm) nextHub() string { return s.addresses[s.dials.Add(1)%uint64(len(s.addresses))] }

// tunnels returns the subject of a node's tunnels.
func (s *Swarm) tunnels(node string) string {
	_, in := protocol.Permissions(node)
	return in
}
