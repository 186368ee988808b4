// Package agent assembles edgecore: leaf, store, local API, delivery, reports and the kubelet of one gateway.
//
// The parts start in the order of the downward path and stop in reverse, each awaited, so the kubelet can still write its
// last status into the store. No part waits for the link: without one the node runs the content of its store.
package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/enroll"
	"github.com/frond-edge/frond/edged/hollow"
	"github.com/frond-edge/frond/edged/kubelet"
	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/internal/health"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/localapi/merge"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/leaf/store/seal"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// leaseHealthyFor is the lease duration that edged gives the kubelet; after an older renewal the kubelet counts as hung.
	leaseHealthyFor = 40 * time.Second
	// probeTimeout limits one round trip of the link's watchdog.
	probeTimeout = 5 * time.Second
	// openTimeout limits opening the store: 500 objects take 4 ms on the measured disk.
	openTimeout = 2 * time.Minute
)

// Node is one gateway's agent.
type Node struct {
	cfg     config.EdgeCore
	proxy   func(*url.URL) (*url.URL, error)
	metrics *prometheus.Registry
	log     *zap.Logger
	leaf    *leaf.Server
	// renewer holds the node's identity; nil for a user that is in the hub's configuration.
	renewer *enroll.Renewer
	// identityErr is the reason why a node that has an identity runs without it.
	identityErr error
	probeConn   chan *nats.Conn
	// delivery requests the desired state; nil until it is created.
	delivery atomic.Pointer[deliver.Delivery]
	// localKubelet is the kubelet of this process; nil until it is created.
	localKubelet atomic.Pointer[kubelet.Kubelet]
}

// New validates the configuration and creates the node's folders. proxy finds the HTTP proxy to a hub; metrics is served on /metrics.
func New(cfg config.EdgeCore, proxy func(*url.URL) (*url.URL, error), metrics *prometheus.Registry, log *zap.Logger) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, proxy: proxy, metrics: metrics, log: log, probeConn: make(chan *nats.Conn, 1)}
	for _, dir := range []string{cfg.Dir, identityDir(cfg)} {
		if err := ensurePrivateDir(dir, log); err != nil {
			return nil, fmt.Errorf("make the node's folders: %w", err)
		}
	}
	for _, dir := range []string{kubeletDir(cfg), cfg.Kubelet.StaticPodPath} {
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return nil, fmt.Errorf("make the node's folders: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(cfg.LocalAPI.Socket), n.socketDirMode()); err != nil {
		return nil, fmt.Errorf("make the node's folders: %w", err)
	}
	return n, nil
}

// socketPath returns a path for a socket in the local API's folder, whose path is short enough for a socket.
func (n *Node) socketPath(name string) string {
	return filepath.Join(filepath.Dir(n.cfg.LocalAPI.Socket), name)
}

// highWaterFile exists if the node has had a store.
func (n *Node) highWaterFile() string { return filepath.Join(n.cfg.Dir, "store.mark") }

// Start runs the node until ctx ends, then stops it and returns nil. Containers keep running.
func (n *Node) Start(ctx context.Context) error {
	way, err := n.loadIdentity()
	if err != nil {
		return err
	}
	if err := n.metrics.Register(n.certExpiry()); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	way.Node, way.Dir, way.Probe, way.Metrics = n.cfg.Node, filepath.Join(n.cfg.Dir, "nats"), n.probeLink, n.metrics
	if n.leaf, err = leaf.New(way, n.log); err != nil {
		return err
	}
	parts := []lifecycle.Part{{Name: "leaf", Start: n.leaf.Start, Ready: n.leaf.Ready()}}
	if n.renewer != nil {
		parts = append(parts, n.identityPart())
	}
	return lifecycle.Run(ctx, n.log, append(parts, lifecycle.Part{Name: "node", Start: n.runParts})...)
}

// runParts runs all parts that depend on the leaf server.
func (n *Node) runParts(ctx context.Context) error {
	nc, err := n.leaf.Conn("edgecore")
	if err != nil {
		return err
	}
	defer nc.Close()
	n.probeConn <- nc
	octx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	st, sink, err := n.openStore(octx, nc)
	if err != nil {
		return err
	}
	up := cloudUpstream{node: n.cfg.Node, nc: nc, delivery: &n.delivery}
	api, err := localapi.New(n.localAPIConfig(), st, up, guardedOutbox{sink, writableCheck(n.leaf.DiskSpace)}, n.log)
	if err != nil {
		return err
	}
	ready, running, err := n.kubeletParts(api, st, up) //nolint:contextcheck // New starts nothing
	if err != nil {
		return err
	}
	disk, err := newDiskMonitor(n.cfg.Node, n.leaf.DiskSpace, sink, api.ClientConfig(), n.metrics, n.log.Named("storage"))
	if err != nil {
		return err
	}
	said := n.identityConditionParts(disk.client)
	moving, err := n.wireMessaging(nc, st, sink, api, api.LockKey, &kubeletHealth{leaseRenewed: api.LeaseRenewed, ready: ready}, disk)
	if err != nil {
		return err
	}
	bulk, err := n.leaf.Conn("tunnels") // a separate connection, so that tunnels never delay a delivery
	if err != nil {
		return err
	}
	defer bulk.Close()
	ways, err := n.tunnelsPart(bulk, st)
	if err != nil {
		return err
	}
	parts := append([]lifecycle.Part{{Name: "localapi", Start: api.Start, Ready: api.Ready()}, n.socketPart(), ways}, append(moving, said...)...)
	return lifecycle.Run(ctx, n.log, append(parts, running...)...)
}

// openStore creates the node's own streams and opens the store.
func (n *Node) openStore(ctx context.Context, nc *nats.Conn) (*store.Store, *outbox.Outbox, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, nil, fmt.Errorf("jetstream: %w", err)
	}
	if err := topology.EnsureLeaf(ctx, js, n.log.Named("streams")); err != nil {
		return nil, nil, fmt.Errorf("prepare the leaf: %w", err)
	}
	sealer, err := seal.Load(filepath.Join(identityDir(n.cfg), "store.key"), n.log.Named("seal"))
	if err != nil {
		return nil, nil, err
	}
	st, err := store.Open(ctx, js, store.Config{
		Sealer: sealer, IsSecret: localapi.IsSecret,
		Merge: merge.ForNode(n.cfg.Node), HighWaterFile: n.highWaterFile(),
		LastGoodFile: filepath.Join(n.cfg.Dir, "store.copy"), CheckWritable: writableCheck(n.leaf.DiskSpace), LowSpace: func() bool { return n.leaf.DiskSpace().Low },
		Metrics: n.metrics,
	}, n.log)
	if err != nil {
		return nil, nil, fmt.Errorf("open the store: %w", err)
	}
	sink, err := outbox.New(n.cfg.Node, st.Cursor().StoreEpoch, nc)
	return st, sink, err
}

// wireMessaging creates the parts that transfer messages, and the node's own health.
func (n *Node) wireMessaging(nc *nats.Conn, st *store.Store, sink *outbox.Outbox, source scopeSource, hold keyLocker, kubelet *kubeletHealth, disk *diskMonitor) ([]lifecycle.Part, error) {
	metrics := metrics.New(n.metrics)
	hubLink := leafLink{n.leaf}
	gate := link.NewFencedLink(hubLink, n.log.Named("gate"))
	checked := newAudited(st, n.metrics)
	history, err := n.withHistory(checked)
	if err != nil {
		return nil, err
	}
	delivery, err := deliver.NewDelivery(n.cfg.Node, nc, history, gate, metrics, n.log.Named("delivery"))
	if err != nil {
		return nil, err
	}
	n.delivery.Store(delivery)
	reports, err := outbox.NewPump(subject.Report, nc, gate, metrics, n.log.Named("pump"))
	if err != nil {
		return nil, err
	}
	events, err := outbox.NewPump(subject.Event, nc, gate, metrics, n.log.Named("pump"))
	if err != nil {
		return nil, err
	}
	beater := call.NewHeartbeater(n.cfg.Node, nc, func(census bool) wire.Heartbeat {
		beat := wire.Heartbeat{
			Cursor: st.Cursor(), Outbox: reports.Waiting() + events.Waiting(),
			Healthy: kubelet.isAlive(), Version: buildinfo.Version(),
		}
		setInstance(&beat, delivery, gate)
		if census {
			checked.addInventory(&beat)
		}
		return beat
	}, n.log.Named("beat"))
	again := &resync{
		node: n.cfg.Node, store: st, link: hubLink, sink: sink, lockKey: hold, requests: make(chan struct{}, 1), log: n.log.Named("resync"),
	}
	orders := call.NewCommandListener(n.cfg.Node, nc, commandHandlers(delivery, again, beater, gate), n.log.Named("orders"))
	nudges := call.NewReportRequests(n.cfg.Node, nc, again.reportRequested, metrics, n.log.Named("nudges"))
	server := health.New(n.cfg.Listen, n.metrics, append(readinessChecks(st, disk, kubelet, gate), n.enrolmentChecks()...)...)
	return append([]lifecycle.Part{
		{Name: "health", Start: server.Start, Ready: server.Ready()},
		{Name: "gate", Start: gate.Start},
		{Name: "delivery", Start: delivery.Start},
		{Name: "reports", Start: reports.Start},
		{Name: "events", Start: events.Start},
		{Name: "beat", Start: beater.Start},
		{Name: "resync", Start: again.Start},
		{Name: "nudges", Start: nudges.Start},
		{Name: "storage", Start: disk.Start},
		{Name: "orders", Start: orders.Start},
		{Name: "endpoints", Start: (&endpointSync{node: n.cfg.Node, store: st, log: n.log.Named("endpoints")}).Start},
		{Name: "copy", Start: (&lastGoodSaver{save: st.SaveLastGood, log: n.log.Named("copy")}).Start},
	}, n.scopeParts(nc, source, gate)...), nil
}

// kubeletDropIn returns the gateway's changes to the kubelet's defaults, and then the operator's. A changed ConfigMap reaches its
// volumes at a pod's next sync: with a gateway's few pods, a sync each 10 s instead of 60 s has no measurable cost. The kubelet
// also gets objects from the local API, 0.1 ms away, when it needs them: watching 1,000 of them costs 50 MB.
func (n *Node) kubeletDropIn() ([]byte, error) {
	settings := map[string]any{"syncFrequency": "10s", "configMapAndSecretChangeDetectionStrategy": "Get"}
	maps.Copy(settings, n.cfg.Kubelet.Settings)
	data, err := json.Marshal(settings)
	if err != nil {
		return nil, fmt.Errorf("kubelet.settings: %w", err)
	}
	return data, nil
}

// kubeletParts creates the kubelet's part, after the hollow runtime's if there are no containers, and returns the kubelet's
// ready channel. Both are missing if another kubelet uses the local API: its state is known from the lease that it renews.
func (n *Node) kubeletParts(api *localapi.Server, st *store.Store, up cloudUpstream) (ready <-chan struct{}, parts []lifecycle.Part, err error) {
	if n.cfg.Kubelet.External {
		return nil, nil, nil
	}
	endpoint := n.cfg.Runtime.Endpoint
	if n.cfg.Runtime.Hollow && endpoint == "" {
		runtime, err := hollow.New(hollow.Config{
			Socket: n.socketPath("cri.sock"), Dir: n.cfg.Dir, PodCIDR: lastPodCIDR(st, n.cfg.Node),
		}, n.log.Named("hollow"))
		if err != nil {
			return nil, nil, err
		}
		endpoint = runtime.Endpoint()
		parts = append(parts, lifecycle.Part{Name: "hollow", Start: runtime.Start, Ready: runtime.Ready()})
	}
	settings, err := n.kubeletDropIn()
	if err != nil {
		return nil, nil, err
	}
	k := n.cfg.Kubelet
	called := &nodeNames{node: n.cfg.Node, ask: up.Do, link: leafLink{n.leaf}.State, log: n.log.Named("names")}
	embedded, err := kubelet.New(kubelet.Config{
		Node: n.cfg.Node, Dir: kubeletDir(n.cfg), RuntimeEndpoint: endpoint, Hollow: n.cfg.Runtime.Hollow,
		NodeIP: k.NodeIP, Labels: k.Labels, Taints: k.RegisterWithTaints, MaxPods: int(k.MaxPods), CgroupDriver: k.CgroupDriver, CgroupRoot: k.CgroupRoot,
		StaticPodPath: k.StaticPodPath, Address: k.Address, Port: int(k.Port),
		CertFile: k.CertFile, KeyFile: k.KeyFile, ClientCAFile: cmp.Or(k.ClientCAFile, n.clusterCAFile()), DropIn: settings,
		NodeNames: called.listNames, Now: n.cloudNow, PodCertificates: api,
	}, api.ClientConfig(), n.log)
	if err != nil {
		return nil, nil, err
	}
	n.localKubelet.Store(embedded)
	return embedded.Ready(), append(parts, lifecycle.Part{Name: "names", Start: called.Start},
		lifecycle.Part{Name: "kubelet", Start: embedded.Start, Ready: embedded.Ready()}), nil
}

// kubeletHealth determines whether the kubelet is alive.
type kubeletHealth struct {
	leaseRenewed func() time.Time
	ready        <-chan struct{} // nil for a kubelet that is known only by its lease
	once         sync.Once
	readySince   time.Time // guarded by once; when ready was first seen closed
}

// isAlive is true while the kubelet renews its lease in time. On a node that has just registered, the kubelet writes the
// first lease only with its second try, 10 s after the start; until then its Ready state counts.
func (p *kubeletHealth) isAlive() bool {
	if time.Since(p.leaseRenewed()) < leaseHealthyFor {
		return true
	}
	select {
	case <-p.ready:
	default:
		return false
	}
	p.once.Do(func() { p.readySince = time.Now() })
	return time.Since(p.readySince) < leaseHealthyFor
}

// probeLink is the link's watchdog: any answer of the hub suffices, even that the consumer is unknown.
func (n *Node) probeLink(ctx context.Context) error {
	var nc *nats.Conn
	select {
	case nc = <-n.probeConn:
		n.probeConn <- nc
	default:
		return nil // the node is still starting
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return call.Probe(ctx, nc, n.cfg.Node)
}

// leafLink adapts the leaf's link for streams.
type leafLink struct{ leaf *leaf.Server }

func (l leafLink) State() (bool, <-chan struct{}) {
	state, changed := l.leaf.WatchLink()
	return state.Up, changed
}
