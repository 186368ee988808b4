package edgenode

import (
	"context"
	"net"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams/tunnel"
)

// NewStorage gives tests the answer to a full disk.
var NewStorage = newStorage

// ShareSocket gives tests the opening of the socket.
var ShareSocket = shareSocket

// Nudged returns what a node does when the cloud asks it to report an object.
func Nudged(node string, st *store.Store, to reporter, hold holder, log *zap.Logger) func(context.Context, wire.Key) error {
	r := &resync{node: node, store: st, to: to, hold: hold, log: log}
	return r.nudged
}

// KeepEndpoints runs the part that keeps endpoint slices right.
func KeepEndpoints(ctx context.Context, node string, st *store.Store, log *zap.Logger) error {
	return (&endpoints{node: node, store: st, log: log}).Start(ctx)
}

// AdmitPod judges what the cloud may reach on a node, by the pods in its store, the runtime's word and the machine's addresses.
func AdmitPod(ctx context.Context, node string, pods []store.Entry, given map[string]netip.Addr, host []net.Addr, to netip.AddrPort) error {
	return (&podDialer{
		node: node, pods: func() []store.Entry { return pods },
		given: func(_ context.Context, uid string) ([]netip.Addr, error) { return []netip.Addr{given[uid]}, nil },
		host:  func() ([]net.Addr, error) { return host, nil },
	}).admit(ctx, to)
}

// ServePods joins streams to the pods in a node's store that are in the machine's network.
func ServePods(ctx context.Context, node string, pods []store.Entry, l *tunnel.Listener) error {
	return (&podDialer{node: node, pods: func() []store.Entry { return pods }, host: net.InterfaceAddrs}).serve(ctx, l)
}

// SaveCopies runs the part that saves the last-good copy.
func SaveCopies(ctx context.Context, save func(context.Context) error, log *zap.Logger) error {
	return (&copier{save: save, log: log}).Start(ctx)
}

// Identified reads the identity of a node, and returns what /readyz then says of it.
func Identified(cfg config.EdgeCore, log *zap.Logger) (ready, err error) {
	n := &Node{cfg: cfg, metrics: prometheus.NewRegistry(), log: log}
	if _, err := n.identified(); err != nil {
		return nil, err
	}
	return n.enrolment()[0].Ready(), nil
}

// ServingGate returns what holds the cloud's calls of a kubelet back, where kubelet is the one of the process; nil: none is.
func ServingGate(kubelet certificateSource) func(context.Context) string {
	return (&servingGate{kubelet: func() certificateSource { return kubelet }}).pass
}
