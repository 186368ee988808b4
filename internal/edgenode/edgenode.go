// Package edgenode is edgecore put together: leaf, store, local API, delivery, reports and the kubelet of one gateway.
//
// The parts start in the order of the path down and stop in reverse, each awaited, so the kubelet can still write its
// last status into the store. Nothing waits for the link: without one the node runs what its store holds.
package edgenode

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
	"github.com/frond-edge/frond/edged"
	"github.com/frond-edge/frond/edged/hollow"
	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/internal/enrol"
	"github.com/frond-edge/frond/internal/health"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/leaf/store/seal"
	"github.com/frond-edge/frond/streams"
)

const (
	// healthyLease is the lease duration that edged gives the kubelet; an older renewal means that it hangs.
	healthyLease = 40 * time.Second
	// probeTimeout bounds one round trip of the link's watchdog.
	probeTimeout = 5 * time.Second
	// openTimeout bounds opening the store: 500 objects take 4 ms on the measured disk.
	openTimeout = 2 * time.Minute
)

// Node is one gateway's agent.
type Node struct {
	cfg     config.EdgeCore
	proxy   func(*url.URL) (*url.URL, error)
	metrics *prometheus.Registry
	log     *zap.Logger
	leaf    *leaf.Server
	// keeper keeps the node's identity; nil for a user that the hub knows by its configuration.
	keeper *enrol.Keeper
	// lost is why a node that has an identity runs without it.
	lost  error
	probe chan *nats.Conn
	// delivery is what asks for desired state, once it is made.
	delivery atomic.Pointer[streams.Delivery]
	// kubeletHere is the kubelet of this process, once it is made.
	kubeletHere atomic.Pointer[edged.Kubelet]
}

// New checks the configuration and makes the node's folders. proxy finds the HTTP proxy to a hub; metrics is served on /metrics.
func New(cfg config.EdgeCore, proxy func(*url.URL) (*url.URL, error), metrics *prometheus.Registry, log *zap.Logger) (*Node, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, proxy: proxy, metrics: metrics, log: log, probe: make(chan *nats.Conn, 1)}
	for _, dir := range []string{cfg.Dir, identityDir(cfg)} {
		if err := private(dir, log); err != nil {
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

// socket places a socket beside the local API's: that folder is short enough for a socket's path.
func (n *Node) socket(name string) string {
	return filepath.Join(filepath.Dir(n.cfg.LocalAPI.Socket), name)
}

// markFile is there when the node has had a store.
func (n *Node) markFile() string { return filepath.Join(n.cfg.Dir, "store.mark") }

// Start runs the node until ctx ends, then stops it and returns nil. Containers are left running.
func (n *Node) Start(ctx context.Context) error {
	way, err := n.identified()
	if err != nil {
		return err
	}
	if err := n.metrics.Register(n.expiry()); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	way.Node, way.Dir, way.Probe, way.Metrics = n.cfg.Node, filepath.Join(n.cfg.Dir, "nats"), n.roundTrip, n.metrics
	if n.leaf, err = leaf.New(way, n.log); err != nil {
		return err
	}
	parts := []lifecycle.Part{{Name: "leaf", Start: n.leaf.Start, Ready: n.leaf.Ready()}}
	if n.keeper != nil {
		parts = append(parts, n.identity())
	}
	return lifecycle.Run(ctx, n.log, append(parts, lifecycle.Part{Name: "node", Start: n.serve})...)
}

// serve runs all that stands on the leaf server.
func (n *Node) serve(ctx context.Context) error {
	nc, err := n.leaf.Conn("edgecore")
	if err != nil {
		return err
	}
	defer nc.Close()
	n.probe <- nc
	octx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	st, outbox, err := n.open(octx, nc)
	if err != nil {
		return err
	}
	up := upstream{node: n.cfg.Node, nc: nc, delivery: &n.delivery}
	api, err := localapi.New(n.localAPI(), st, up, guardedOutbox{outbox, full(n.leaf.Space)}, n.log)
	if err != nil {
		return err
	}
	ready, running, err := n.kubelet(api, st, up) //nolint:contextcheck // New starts nothing
	if err != nil {
		return err
	}
	disk, err := newStorage(n.cfg.Node, n.leaf.Space, outbox, api.ClientConfig(), n.metrics, n.log.Named("storage"))
	if err != nil {
		return err
	}
	said := n.sayIdentity(disk.client)
	moving, err := n.wire(nc, st, outbox, api, api.Hold, &pulse{renewed: api.LeaseRenewed, ready: ready}, disk)
	if err != nil {
		return err
	}
	bulk, err := n.leaf.Conn("tunnels") // what a tunnel carries never waits in front of a delivery
	if err != nil {
		return err
	}
	defer bulk.Close()
	ways, err := n.ways(bulk, st)
	if err != nil {
		return err
	}
	parts := append([]lifecycle.Part{{Name: "localapi", Start: api.Start, Ready: api.Ready()}, n.openSocket(), ways}, append(moving, said...)...)
	return lifecycle.Run(ctx, n.log, append(parts, running...)...)
}

// open makes the node's own streams and opens the store.
func (n *Node) open(ctx context.Context, nc *nats.Conn) (*store.Store, *streams.Outbox, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, nil, fmt.Errorf("jetstream: %w", err)
	}
	if err := streams.EnsureLeaf(ctx, js, n.log.Named("streams")); err != nil {
		return nil, nil, fmt.Errorf("prepare the leaf: %w", err)
	}
	sealer, err := seal.Load(filepath.Join(identityDir(n.cfg), "store.key"), n.log.Named("seal"))
	if err != nil {
		return nil, nil, err
	}
	st, err := store.Open(ctx, js, store.Config{
		Sealer: sealer, Secret: localapi.Secret,
		Merge: localapi.MergeFor(n.cfg.Node), Mark: n.markFile(),
		Copy: filepath.Join(n.cfg.Dir, "store.copy"), Refuse: full(n.leaf.Space), Low: func() bool { return n.leaf.Space().Low },
		Metrics: n.metrics,
	}, n.log)
	if err != nil {
		return nil, nil, fmt.Errorf("open the store: %w", err)
	}
	outbox, err := streams.NewOutbox(n.cfg.Node, st.Cursor().StoreEpoch, nc)
	return st, outbox, err
}

// wire makes the parts that move messages, and the node's own health.
func (n *Node) wire(nc *nats.Conn, st *store.Store, outbox *streams.Outbox, source scopeSource, hold holder, kubelet *pulse, disk *storage) ([]lifecycle.Part, error) {
	metrics := streams.NewMetrics(n.metrics)
	link := link{n.leaf}
	gate := streams.NewGate(link, n.log.Named("gate"))
	checked := newAudited(st, n.metrics)
	history, err := n.recorded(checked)
	if err != nil {
		return nil, err
	}
	delivery, err := streams.NewDelivery(n.cfg.Node, nc, history, gate, metrics, n.log.Named("delivery"))
	if err != nil {
		return nil, err
	}
	n.delivery.Store(delivery)
	reports, err := streams.NewPump(streams.Report, nc, gate, metrics, n.log.Named("pump"))
	if err != nil {
		return nil, err
	}
	events, err := streams.NewPump(streams.Event, nc, gate, metrics, n.log.Named("pump"))
	if err != nil {
		return nil, err
	}
	beater := streams.NewBeater(n.cfg.Node, nc, func(census bool) wire.Beat {
		beat := wire.Beat{
			Cursor: st.Cursor(), Outbox: reports.Waiting() + events.Waiting(),
			Healthy: kubelet.beats(), Version: buildinfo.Version(),
		}
		identify(&beat, delivery, gate)
		if census {
			checked.count(&beat)
		}
		return beat
	}, n.log.Named("beat"))
	again := &resync{
		node: n.cfg.Node, store: st, link: link, to: outbox, hold: hold, asked: make(chan struct{}, 1), log: n.log.Named("resync"),
	}
	orders := streams.NewOrders(n.cfg.Node, nc, obey(delivery, again, beater, gate), n.log.Named("orders"))
	nudges := streams.NewNudges(n.cfg.Node, nc, again.nudged, metrics, n.log.Named("nudges"))
	server := health.New(n.cfg.Listen, n.metrics, append(checks(st, disk, kubelet, gate), n.enrolment()...)...)
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
		{Name: "endpoints", Start: (&endpoints{node: n.cfg.Node, store: st, log: n.log.Named("endpoints")}).Start},
		{Name: "copy", Start: (&copier{save: st.SaveCopy, log: n.log.Named("copy")}).Start},
	}, n.scoped(nc, source, gate)...), nil
}

// dropIn is what a gateway wants otherwise than the kubelet's defaults, and then what the operator wants. A changed ConfigMap
// reaches its volumes at a pod's next sync: with the few pods of a gateway, one each 10 s instead of 60 s costs nothing that can
// be measured. And the kubelet asks the local API, 0.1 ms away, when it needs an object, where watching 1,000 of them costs 50 MB.
func (n *Node) dropIn() ([]byte, error) {
	settings := map[string]any{"syncFrequency": "10s", "configMapAndSecretChangeDetectionStrategy": "Get"}
	maps.Copy(settings, n.cfg.Kubelet.Settings)
	data, err := json.Marshal(settings)
	if err != nil {
		return nil, fmt.Errorf("kubelet.settings: %w", err)
	}
	return data, nil
}

// kubelet makes the kubelet's part, behind the hollow runtime's where there are no containers, and tells when the kubelet is
// ready. There is neither where another kubelet uses the local API: it is known by the lease that it renews.
func (n *Node) kubelet(api *localapi.Server, st *store.Store, up upstream) (ready <-chan struct{}, parts []lifecycle.Part, err error) {
	if n.cfg.Kubelet.External {
		return nil, nil, nil
	}
	endpoint := n.cfg.Runtime.Endpoint
	if n.cfg.Runtime.Hollow && endpoint == "" {
		runtime, err := hollow.New(hollow.Config{
			Socket: n.socket("cri.sock"), Dir: n.cfg.Dir, PodCIDR: lastPodCIDR(st, n.cfg.Node),
		}, n.log.Named("hollow"))
		if err != nil {
			return nil, nil, err
		}
		endpoint = runtime.Endpoint()
		parts = append(parts, lifecycle.Part{Name: "hollow", Start: runtime.Start, Ready: runtime.Ready()})
	}
	settings, err := n.dropIn()
	if err != nil {
		return nil, nil, err
	}
	k := n.cfg.Kubelet
	called := &names{node: n.cfg.Node, ask: up.Do, link: link{n.leaf}.State, log: n.log.Named("names")}
	kubelet, err := edged.New(edged.Config{
		Node: n.cfg.Node, Dir: kubeletDir(n.cfg), RuntimeEndpoint: endpoint, Hollow: n.cfg.Runtime.Hollow,
		NodeIP: k.NodeIP, Labels: k.Labels, Taints: k.RegisterWithTaints, MaxPods: int(k.MaxPods), CgroupDriver: k.CgroupDriver, CgroupRoot: k.CgroupRoot,
		StaticPodPath: k.StaticPodPath, Address: k.Address, Port: int(k.Port),
		CertFile: k.CertFile, KeyFile: k.KeyFile, ClientCAFile: cmp.Or(k.ClientCAFile, n.clusterCA()), DropIn: settings,
		Names: called.list, Now: n.now, PodCertificates: api,
	}, api.ClientConfig(), n.log)
	if err != nil {
		return nil, nil, err
	}
	n.kubeletHere.Store(kubelet)
	return kubelet.Ready(), append(parts, lifecycle.Part{Name: "names", Start: called.Start},
		lifecycle.Part{Name: "kubelet", Start: kubelet.Start, Ready: kubelet.Ready()}), nil
}

// pulse tells whether the kubelet lives.
type pulse struct {
	renewed func() time.Time
	ready   <-chan struct{} // nil for a kubelet that tells nothing but its lease
	once    sync.Once
	first   time.Time // guarded by once; when ready was first seen closed
}

// beats holds while the kubelet renews its lease in time. On a node that has just registered it writes the first lease
// only with its second try, 10 s after the start; until then its being Ready counts.
func (p *pulse) beats() bool {
	if time.Since(p.renewed()) < healthyLease {
		return true
	}
	select {
	case <-p.ready:
	default:
		return false
	}
	p.once.Do(func() { p.first = time.Now() })
	return time.Since(p.first) < healthyLease
}

// roundTrip is the link's watchdog: any answer of the hub will do, also that the consumer is unknown.
func (n *Node) roundTrip(ctx context.Context) error {
	var nc *nats.Conn
	select {
	case nc = <-n.probe:
		n.probe <- nc
	default:
		return nil // the node is still starting
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return streams.Probe(ctx, nc, n.cfg.Node)
}

// link is the leaf's link as streams looks at it.
type link struct{ leaf *leaf.Server }

func (l link) State() (bool, <-chan struct{}) {
	state, changed := l.leaf.WatchLink()
	return state.Up, changed
}
