package localapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

// Pods says how the pods of this gateway reach the local API, where their environment and the cluster's DNS send them: to
// the Service default/kubernetes.
type Pods struct {
	// Dir keeps the gateway's own CA; "" serves no pods.
	Dir string
	// Claim makes an address one of this machine's own. It is called again for the same address and must not mind.
	Claim func(ctx context.Context, address netip.Addr) error
	// Outside tells whether a peer is on another machine: such a one is no pod of this gateway, and is refused whatever token it
	// has. A peer that it has no answer for is taken. nil takes all.
	Outside func(peer netip.Addr) (bool, error)
	// Address is where the API listens for them beside the Service's own addresses; a proxy of Services is told that this is
	// the Service's one endpoint. The zero value is none.
	Address netip.AddrPort
	// Expired is access.Config.Expired.
	Expired time.Duration
}

// retryListen is how long a listener that could not be opened waits: somebody has to do something first.
const retryListen = 15 * time.Second

// kubernetesService is the Service that every pod is told to find the API by.
func kubernetesService() wire.Key {
	return wire.Key{Resource: "services", Namespace: "default", Name: "kubernetes"}
}

// podServer listens wherever pods look for the API, and follows the Service's addresses.
type podServer struct {
	s      *Server
	ca     *authority
	client *x509.CertPool // CA of client certificates; nil takes none
	served sync.WaitGroup // the servers of all listeners

	mu     sync.Mutex // guards all below
	cert   *tls.Certificate
	open   map[netip.AddrPort]*listening
	failed map[netip.AddrPort]string // last told, so that a fault is logged once
	told   time.Time                 // when a refused peer was last logged
}

// listening is one open listener; done is closed when its server has ended.
type listening struct {
	server *http.Server
	at     netip.AddrPort     // with the port that was given for 0
	end    context.CancelFunc // ends the watches
	done   chan struct{}
}

func newPodServer(s *Server) (*podServer, error) {
	ca, err := openAuthority(s.cfg.Pods.Dir, s.cfg.Node)
	if err != nil {
		return nil, err
	}
	p := &podServer{s: s, ca: ca, open: map[netip.AddrPort]*listening{}, failed: map[netip.AddrPort]string{}}
	if s.tls != nil {
		p.client = s.tls.ClientCAs
	}
	return p, nil
}

// wanted is where to listen, as the store says now.
func (p *podServer) wanted() []netip.AddrPort {
	var list []netip.AddrPort
	if a := p.s.cfg.Pods.Address; a.IsValid() {
		list = append(list, a)
	}
	entry, err := p.s.store.Get(kubernetesService())
	if err != nil {
		return list
	}
	var service corev1.Service
	if err := json.Unmarshal(entry.Object, &service); err != nil {
		return list
	}
	for _, ip := range service.Spec.ClusterIPs {
		address, err := netip.ParseAddr(ip)
		if err != nil {
			continue // headless
		}
		for _, port := range service.Spec.Ports {
			list = append(list, netip.AddrPortFrom(address, uint16(port.Port)))
		}
	}
	return list
}

// run follows the Service until ctx ends, and then closes all listeners.
func (p *podServer) run(ctx context.Context) error {
	defer p.closeAll(ctx)
	for ctx.Err() == nil {
		key := kubernetesService()
		changes, err := p.s.store.Watch(key.Group, key.Resource, key.Namespace, p.s.store.Revision())
		if err != nil {
			continue // the revision has moved on meanwhile
		}
		p.follow(ctx, changes)
		changes.Stop()
	}
	return nil
}

func (p *podServer) follow(ctx context.Context, changes *store.Watcher) {
	for {
		wait := context.CancelFunc(func() {})
		until := ctx
		if !p.adjust(ctx) {
			until, wait = context.WithTimeout(ctx, retryListen)
		}
		_, err := changes.Next(until)
		wait()
		if ctx.Err() != nil || errors.Is(err, store.ErrGone) {
			return
		}
	}
}

// adjust opens and closes listeners until they are as wanted, and says whether they are.
func (p *podServer) adjust(ctx context.Context) bool {
	wanted := p.wanted()
	p.mu.Lock()
	same := len(wanted) == len(p.open) && !slices.ContainsFunc(wanted, func(a netip.AddrPort) bool { return p.open[a] == nil })
	p.mu.Unlock()
	if same {
		return true
	}
	if err := p.certify(wanted); err != nil {
		p.s.log.Error("pods cannot be served", zap.Error(err))
		return false
	}
	ok := true
	for _, address := range wanted {
		ok = p.listen(ctx, address) && ok
	}
	p.mu.Lock()
	var old []*listening
	for address, l := range p.open {
		if !slices.Contains(wanted, address) {
			old = append(old, l)
			delete(p.open, address)
		}
	}
	p.mu.Unlock()
	for _, l := range old {
		l.close(ctx)
	}
	return ok
}

func (p *podServer) certify(addresses []netip.AddrPort) error {
	ips := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	for _, a := range addresses {
		ips = append(ips, a.Addr())
	}
	cert, err := p.ca.issue(p.s.cfg.Node, ips)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cert = cert
	return nil
}

// listen opens one address unless it is open.
func (p *podServer) listen(ctx context.Context, address netip.AddrPort) bool {
	p.mu.Lock()
	open := p.open[address] != nil
	p.mu.Unlock()
	if open {
		return true
	}
	listener, err := p.claim(ctx, address)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if text := err.Error(); p.failed[address] != text {
			p.failed[address] = text
			p.s.log.Warn("pods cannot reach the local api at this address; tried again until it works",
				zap.Stringer("address", address), zap.Error(err))
		}
		return false
	}
	delete(p.failed, address)
	ctx, end := context.WithCancel(ctx)
	l := &listening{server: p.s.newHTTP(through(ctx, nobody)), at: address, end: end, done: make(chan struct{})}
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok {
		l.at = netip.AddrPortFrom(address.Addr(), tcp.AddrPort().Port())
	}
	l.server.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS13, // which the clients of pods have had since Go 1.13 and OpenSSL 1.1.1
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.cert, nil
		},
	}
	if p.client != nil {
		l.server.TLSConfig.ClientCAs, l.server.TLSConfig.ClientAuth = p.client, tls.VerifyClientCertIfGiven
	}
	p.open[address] = l
	p.served.Go(func() { // until l.close
		defer close(l.done)
		if err := l.server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			p.s.log.Error("listener for pods ended", zap.Stringer("address", address), zap.Error(err))
		}
	})
	p.s.log.Info("pods are served", zap.Stringer("address", address))
	return true
}

func (p *podServer) claim(ctx context.Context, address netip.AddrPort) (net.Listener, error) {
	if claim := p.s.cfg.Pods.Claim; claim != nil {
		if err := claim(ctx, address.Addr()); err != nil {
			return nil, fmt.Errorf("claim the address: %w", err)
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address.String())
	if err != nil {
		return nil, err
	}
	return newFair(listener, p.refused), nil
}

// tellRefused is how often a refused peer is logged: anybody on the network can be one.
const tellRefused = time.Minute

// refused tells whether a peer may not even speak.
func (p *podServer) refused(peer netip.Addr) bool {
	if p.s.cfg.Pods.Outside == nil {
		return false
	}
	outside, err := p.s.cfg.Pods.Outside(peer)
	if err != nil {
		p.s.log.Debug("not known whether a peer is on this machine; taken", zap.Stringer("peer", peer), zap.Error(err))
		return false
	}
	if !outside {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.told) >= tellRefused {
		p.told = now
		p.s.log.Warn("a peer outside of this machine refused where pods are served; told once a minute", zap.Stringer("peer", peer))
	}
	return true
}

// close ends watches, lets requests end, and waits for all of them.
func (l *listening) close(ctx context.Context) {
	l.end()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if l.server.Shutdown(grace) != nil {
		_ = l.server.Close()
	}
	<-l.done
}

func (p *podServer) closeAll(ctx context.Context) {
	p.mu.Lock()
	open := p.open
	p.open = map[netip.AddrPort]*listening{}
	p.mu.Unlock()
	for _, l := range open {
		l.close(ctx)
	}
	p.served.Wait()
}

// PodAddresses lists where pods are served now, sorted.
func (s *Server) PodAddresses() []netip.AddrPort {
	if s.pods == nil {
		return nil
	}
	s.pods.mu.Lock()
	defer s.pods.mu.Unlock()
	var list []netip.AddrPort
	for _, l := range s.pods.open {
		list = append(list, l.at)
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}
