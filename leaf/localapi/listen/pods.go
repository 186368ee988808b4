package listen

import (
	"context"
	"crypto/tls"
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
	"github.com/frond-edge/frond/leaf/localapi/caller"
	"github.com/frond-edge/frond/leaf/localapi/limit"
	"github.com/frond-edge/frond/leaf/localapi/localca"
	"github.com/frond-edge/frond/leaf/store"
)

// PodsConfig configures how the pods of this gateway reach the local API. Their environment and the cluster's DNS name the
// Service default/kubernetes.
type PodsConfig struct {
	// Dir is the folder of the gateway's own CA; "" serves no pods.
	Dir string
	// ClaimAddress adds an address to this machine. It may be called again for the same address.
	ClaimAddress func(ctx context.Context, address netip.Addr) error
	// IsRemotePeer reports whether a peer is on another machine. Such a peer is not a pod of this gateway, and is refused
	// with any token. A peer for which it returns an error is accepted. nil accepts all.
	IsRemotePeer func(peer netip.Addr) (bool, error)
	// Address is a further listen address for pods, beside the Service's own addresses. Proxies of Services get it as the
	// Service's one endpoint. The zero value is none.
	Address netip.AddrPort
}

// listenRetryInterval is the pause before a listener that could not be opened is tried again: the cause usually needs an operator.
const listenRetryInterval = 15 * time.Second

// kubernetesService returns the key of the Service through which every pod finds the API.
func kubernetesService() wire.Key {
	return wire.Key{Resource: "services", Namespace: "default", Name: "kubernetes"}
}

// Pods serves a handler on the addresses that pods use, and follows the Service's addresses.
type Pods struct {
	node    string
	cfg     PodsConfig
	ca      *localca.CA
	store   *store.Store
	handler http.Handler
	log     *zap.Logger
	servers sync.WaitGroup // the servers of all listeners

	mu              sync.Mutex // guards all fields below
	cert            *tls.Certificate
	listeners       map[netip.AddrPort]*podListener
	lastErrors      map[netip.AddrPort]string // last logged error, so that a fault is logged once
	refusedLoggedAt time.Time                 // when a refused peer was last logged
}

// podListener is one open listener; done is closed when its server has ended.
type podListener struct {
	server  *http.Server
	address netip.AddrPort     // with the actual port if it was 0
	cancel  context.CancelFunc // ends the watches
	done    chan struct{}
}

// NewPods opens nothing. ca issues the certificates of the listeners, and st has the Service.
func NewPods(node string, cfg PodsConfig, ca *localca.CA, st *store.Store, handler http.Handler, log *zap.Logger) *Pods {
	return &Pods{
		node: node, cfg: cfg, ca: ca, store: st, handler: handler, log: log,
		listeners: map[netip.AddrPort]*podListener{}, lastErrors: map[netip.AddrPort]string{},
	}
}

// wantedAddresses returns the listen addresses according to the store.
func (p *Pods) wantedAddresses() []netip.AddrPort {
	var list []netip.AddrPort
	if a := p.cfg.Address; a.IsValid() {
		list = append(list, a)
	}
	entry, err := p.store.Get(kubernetesService())
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

// Run follows the Service until ctx ends, and then closes all listeners.
func (p *Pods) Run(ctx context.Context) error {
	defer p.closeAll(ctx)
	for ctx.Err() == nil {
		key := kubernetesService()
		changes, err := p.store.Watch(key.Group, key.Resource, key.Namespace, p.store.Revision())
		if err != nil {
			continue // the revision has advanced meanwhile
		}
		p.followService(ctx, changes)
		changes.Stop()
	}
	return nil
}

func (p *Pods) followService(ctx context.Context, changes *store.Watcher) {
	for {
		wait := context.CancelFunc(func() {})
		until := ctx
		if !p.SyncListeners(ctx) {
			until, wait = context.WithTimeout(ctx, listenRetryInterval)
		}
		_, err := changes.Next(until)
		wait()
		if ctx.Err() != nil || errors.Is(err, store.ErrGone) {
			return
		}
	}
}

// SyncListeners opens and closes listeners as wanted, and reports whether all of them succeeded. Run does so again until they do.
func (p *Pods) SyncListeners(ctx context.Context) bool {
	wanted := p.wantedAddresses()
	p.mu.Lock()
	same := len(wanted) == len(p.listeners) && !slices.ContainsFunc(wanted, func(a netip.AddrPort) bool { return p.listeners[a] == nil })
	p.mu.Unlock()
	if same {
		return true
	}
	if err := p.issueCert(wanted); err != nil {
		p.log.Error("pods cannot be served", zap.Error(err))
		return false
	}
	ok := true
	for _, address := range wanted {
		ok = p.openListener(ctx, address) && ok
	}
	p.mu.Lock()
	var old []*podListener
	for address, l := range p.listeners {
		if !slices.Contains(wanted, address) {
			old = append(old, l)
			delete(p.listeners, address)
		}
	}
	p.mu.Unlock()
	for _, l := range old {
		l.close(ctx)
	}
	return ok
}

func (p *Pods) issueCert(addresses []netip.AddrPort) error {
	ips := []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1}), netip.IPv6Loopback()}
	for _, a := range addresses {
		ips = append(ips, a.Addr())
	}
	cert, err := p.ca.IssueServingCert(p.node, ips)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cert = cert
	return nil
}

// openListener opens a listener on one address unless it is open.
func (p *Pods) openListener(ctx context.Context, address netip.AddrPort) bool {
	p.mu.Lock()
	open := p.listeners[address] != nil
	p.mu.Unlock()
	if open {
		return true
	}
	listener, err := p.claimAddress(ctx, address)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		if text := err.Error(); p.lastErrors[address] != text {
			p.lastErrors[address] = text
			p.log.Warn("pods cannot reach the local api at this address; tried again until it works",
				zap.Stringer("address", address), zap.Error(err))
		}
		return false
	}
	delete(p.lastErrors, address)
	ctx, end := context.WithCancel(ctx)
	l := &podListener{server: newHTTPServer(caller.WithListener(ctx, caller.Anonymous), p.handler, p.log), address: address, cancel: end, done: make(chan struct{})}
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok {
		l.address = netip.AddrPortFrom(address.Addr(), tcp.AddrPort().Port())
	}
	l.server.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS13, // supported by the clients of pods since Go 1.13 and OpenSSL 1.1.1
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			return p.cert, nil
		},
	}
	p.listeners[address] = l
	p.servers.Go(func() { // until l.close
		defer close(l.done)
		if err := l.server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			p.log.Error("listener for pods ended", zap.Stringer("address", address), zap.Error(err))
		}
	})
	p.log.Info("pods are served", zap.Stringer("address", address))
	return true
}

func (p *Pods) claimAddress(ctx context.Context, address netip.AddrPort) (net.Listener, error) {
	if claim := p.cfg.ClaimAddress; claim != nil {
		if err := claim(ctx, address.Addr()); err != nil {
			return nil, fmt.Errorf("claim the address: %w", err)
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address.String())
	if err != nil {
		return nil, err
	}
	return limit.NewListener(listener, p.refusePeer), nil
}

// refusedLogInterval is how often a refused peer is logged: any machine on the network can be one.
const refusedLogInterval = time.Minute

// refusePeer reports whether a peer's connection must be closed before anything is read.
func (p *Pods) refusePeer(peer netip.Addr) bool {
	if p.cfg.IsRemotePeer == nil {
		return false
	}
	outside, err := p.cfg.IsRemotePeer(peer)
	if err != nil {
		p.log.Debug("not known whether a peer is on this machine; taken", zap.Stringer("peer", peer), zap.Error(err))
		return false
	}
	if !outside {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.refusedLoggedAt) >= refusedLogInterval {
		p.refusedLoggedAt = now
		p.log.Warn("a peer outside of this machine refused where pods are served; told once a minute", zap.Stringer("peer", peer))
	}
	return true
}

// close ends watches, lets requests finish, and waits for all of them.
func (l *podListener) close(ctx context.Context) {
	l.cancel()
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if l.server.Shutdown(grace) != nil {
		_ = l.server.Close()
	}
	<-l.done
}

func (p *Pods) closeAll(ctx context.Context) {
	p.mu.Lock()
	open := p.listeners
	p.listeners = map[netip.AddrPort]*podListener{}
	p.mu.Unlock()
	for _, l := range open {
		l.close(ctx)
	}
	p.servers.Wait()
}

// Addresses lists the addresses on which pods are served now, sorted.
func (p *Pods) Addresses() []netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []netip.AddrPort
	for _, l := range p.listeners {
		list = append(list, l.address)
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return list
}
