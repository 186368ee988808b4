package agent

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

// NewDiskMonitor exports newDiskMonitor to tests.
var NewDiskMonitor = newDiskMonitor

// ShareSocket exports shareSocket to tests.
var ShareSocket = shareSocket

// ReportRequested returns the node's handler for the cloud's request of an object's report.
func ReportRequested(node string, st *store.Store, to reportSink, hold keyLocker, log *zap.Logger) func(context.Context, wire.Key) error {
	r := &resync{node: node, store: st, sink: to, lockKey: hold, log: log}
	return r.reportRequested
}

// SyncEndpoints runs an endpointSync.
func SyncEndpoints(ctx context.Context, node string, st *store.Store, log *zap.Logger) error {
	return (&endpointSync{node: node, store: st, log: log}).Start(ctx)
}

// AdmitPodTarget checks whether the cloud may reach an address on a node, by the pods in its store, the runtime's addresses
// and the machine's.
func AdmitPodTarget(ctx context.Context, node string, pods []store.Entry, given map[string]netip.Addr, host []net.Addr, to netip.AddrPort) error {
	return (&podDialer{
		node: node, storedPods: func() []store.Entry { return pods },
		runtimeAddresses: func(_ context.Context, uid string) ([]netip.Addr, error) { return []netip.Addr{given[uid]}, nil },
		hostAddresses:    func() ([]net.Addr, error) { return host, nil },
	}).admitTarget(ctx, to)
}

// ServePods joins streams to the pods in a node's store that are in the machine's network.
func ServePods(ctx context.Context, node string, pods []store.Entry, l *tunnel.Listener) error {
	return (&podDialer{node: node, storedPods: func() []store.Entry { return pods }, hostAddresses: net.InterfaceAddrs}).serveStreams(ctx, l)
}

// SaveLastGood runs the part that saves the last-good copy.
func SaveLastGood(ctx context.Context, save func(context.Context) error, log *zap.Logger) error {
	return (&lastGoodSaver{save: save, log: log}).Start(ctx)
}

// LoadIdentity reads the identity of a node, and returns the resulting check of /readyz.
func LoadIdentity(cfg config.EdgeCore, log *zap.Logger) (ready, err error) {
	n := &Node{cfg: cfg, metrics: prometheus.NewRegistry(), log: log}
	if _, err := n.loadIdentity(); err != nil {
		return nil, err
	}
	return n.enrolmentChecks()[0].Ready(), nil
}

// ServingGate returns the function that delays the cloud's calls of a kubelet; kubelet is the one of the process, nil for none.
func ServingGate(kubelet certificateSource) func(context.Context) string {
	return (&servingGate{kubelet: func() certificateSource { return kubelet }}).awaitCertificate
}
