package cloud

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/kubeversion"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/autonomy"
	"github.com/frond-edge/frond/controllers/csrs"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/nodes"
	"github.com/frond-edge/frond/controllers/reports"
	"github.com/frond-edge/frond/controllers/scopes"
	"github.com/frond-edge/frond/internal/certs"
	"github.com/frond-edge/frond/internal/health"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/chunk"
	"github.com/frond-edge/frond/streams/consume"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// startTimeout bounds the requests that must succeed before anything can start; after it the process ends and is restarted.
const startTimeout = time.Minute

// Cloud is one cloudcore replica.
type Cloud struct {
	cfg     config.CloudCore
	rest    *rest.Config
	metrics *prometheus.Registry
	log     *zap.Logger
}

// New creates a replica that uses the apiserver of kube. metrics is served on /metrics.
func New(cfg config.CloudCore, kube *rest.Config, metrics *prometheus.Registry, log *zap.Logger) (*Cloud, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	kube = rest.CopyConfig(kube)
	kube.UserAgent = "frond-cloudcore"
	kube.QPS = -1 // the apiserver's own priority and fairness limits requests; reports are coalesced in the stream
	return &Cloud{cfg: cfg, rest: kube, metrics: metrics, log: log}, nil
}

// Start runs the replica until ctx ends, then leaves the members, returns its unfinished work and returns nil. After
// ErrRestored the process should be restarted.
func (c *Cloud) Start(ctx context.Context) error {
	reconnects := prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "frond", Name: "hub_reconnects_total", Help: "Connections to the hub after the first ones.",
	})
	if err := c.metrics.Register(reconnects); err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	if err := c.metrics.Register(certs.NewExpiry(certs.FileExpiries(c.certificateFiles()))); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	nc, err := dialHub(c.cfg.Hub, "cloudcore "+c.cfg.ID, reconnects, c.log.Named("hub"))
	if err != nil {
		return err
	}
	defer nc.Close()
	writer, err := dialWriter(c.cfg.Hub, "cloudcore "+c.cfg.ID+" writer", reconnects, c.log.Named("writer"))
	if err != nil {
		return err
	}
	defer writer.Close()
	// Bulk data through a tunnel fills the connection that carries it; heartbeats and delivery use another and do not
	// wait behind it.
	tunnels, err := dialHub(c.cfg.Hub, "cloudcore "+c.cfg.ID+" tunnels", reconnects, c.log.Named("tunnels"))
	if err != nil {
		return err
	}
	defer tunnels.Close()
	ids, err := c.dialIdentity(reconnects)
	if err != nil {
		return err
	}
	defer ids.close()
	sctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	kv, err := ensureHub(sctx, nc, c.cfg.Replicas, c.log)
	if err != nil {
		return fmt.Errorf("prepare the hub: %w", err)
	}
	parts, err := c.assembleParts(sctx, nc, writer, tunnels, ids, kv)
	if err != nil {
		return err
	}
	return lifecycle.Run(ctx, c.log, parts...)
}

// ensureHub creates the hub's topology, retrying until the hub has a leader.
func ensureHub(ctx context.Context, nc *nats.Conn, replicas int, log *zap.Logger) (jetstream.KeyValue, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		err := topology.Ensure(ctx, js, topology.HubTopology(replicas))
		if err == nil {
			return js.KeyValue(ctx, subject.MembersBucket)
		}
		log.Info("hub not ready", zap.Error(err))
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-ticker.C:
		}
	}
}

// assembleParts creates the parts in the order in which they start.
func (c *Cloud) assembleParts(ctx context.Context, nc, writer, tunnels *nats.Conn, ids *identityService, kv jetstream.KeyValue) ([]lifecycle.Part, error) {
	objects, addresses, err := newCaches(ctx, c.rest)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	metrics := metrics.New(c.metrics)
	members := NewMembers(c.cfg.ID, kv, func() []hubLink { return hubLinks(nc, writer, tunnels, ids.auth, ids.sys) }, c.log.Named("members"))
	publisher, err := publish.NewPublisher(writer, metrics)
	if err != nil {
		return nil, err
	}
	history, err := c.openEpochTracker(ctx, nc, members)
	if err != nil {
		return nil, err
	}
	teller, err := c.newHoldWriter(objects, members)
	if err != nil {
		return nil, err
	}
	var engine *desired.Engine
	asked, err := c.buildScopes(ctx, nc, objects, members, func() *desired.Engine { return engine })
	if err != nil {
		return nil, err
	}
	clients, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	alarms := newEventRecorder(c.cfg.ID, clients, c.log.Named("alarms"))
	withheld := newWithheldEvents(alarms.warnNode)
	cfg := c.desiredConfig(history, teller, withheld)
	cfg.Scopes = asked.Granted
	if engine, err = desired.New(cfg, objects, publisher, members, c.log.Named("desired")); err != nil {
		return nil, err
	}
	keeper, err := topology.NewReconciler(nc, topology.HubTopology(c.cfg.Replicas), func() { engine.Resync() }, c.log.Named("keeper"))
	if err != nil {
		return nil, err
	}
	letIn, err := ids.buildParts(c, objects, clients, members, alarms)
	if err != nil {
		return nil, err
	}
	up, err := c.buildNodeServices(components{
		nc: nc, tunnels: tunnels, ids: ids, objects: objects, addresses: addresses, clients: clients, members: members,
		engine: engine, scopes: asked, topology: keeper, metrics: metrics, events: alarms, withheld: withheld,
	})
	if err != nil {
		return nil, err
	}
	server := c.newHealthServer(nc, keeper, engine, ids.linksSynced)
	// Nodes with records are admitted before anything else is read.
	return slices.Concat([]lifecycle.Part{{Name: "health", Start: server.Start, Ready: server.Ready()}}, letIn, []lifecycle.Part{
		{Name: "keeper", Start: keeper.Start, Ready: keeper.Ready()},
		{Name: "members", Start: members.Start},
		{Name: "history", Start: history.Start},
		{Name: "cache", Start: objects.Start},
		{Name: "holds", Start: teller.Start},
		{Name: "desired", Start: engine.Start, Ready: engine.Ready()},
	}, up), nil
}

// newHealthServer creates the server that reports when this replica is ready: then the previous one may stop. learnt is
// nil if it admits no gateways.
func (c *Cloud) newHealthServer(nc *nats.Conn, keeper *topology.Reconciler, engine *desired.Engine, learnt <-chan struct{}) *health.Server {
	checks := []health.Check{
		{Name: "hub", Ready: checkConnected(nc)},
		{Name: "hub-streams", Ready: checkClosed(keeper.Ready(), "the streams are not in place")},
		{Name: "kubernetes", Ready: checkClosed(engine.Ready(), "the objects of the cluster are not all read")},
	}
	if learnt != nil {
		checks = append(checks, health.Check{Name: "links", Ready: checkClosed(learnt, "the other cloudcores were not asked yet whose links there are")})
	}
	return health.New(c.cfg.Listen, c.metrics, checks...)
}

// components are the collaborators of all parts that serve nodes.
type components struct {
	nc, tunnels *nats.Conn
	ids         *identityService
	objects     cache.Cache
	addresses   addressCache
	clients     kubernetes.Interface
	members     *Members
	engine      *desired.Engine
	scopes      *scopes.GrantController
	topology    *topology.Reconciler
	metrics     *metrics.Metrics
	events      *eventRecorder
	withheld    *withheldEvents
	autonomy    *autonomy.TolerationController // set by buildNodeServices
}

// buildNodeServices creates the parts that serve nodes.
func (c *Cloud) buildNodeServices(k components) ([]lifecycle.Part, error) {
	groups, err := autonomy.NewGroupLister(c.rest)
	if err != nil {
		return nil, err
	}
	k.autonomy = autonomy.New(k.clients, k.objects, groups, k.members, k.events.recordEvent, c.metrics, c.log.Named("autonomy"))
	view, inspection, err := c.buildInspection(k.nc, k.objects, k.members, k.autonomy)
	if err != nil {
		return nil, err
	}
	way, ways, err := c.buildGateway(k)
	if err != nil {
		return nil, err
	}
	k.ids.setCloseStreams(way.CloseStreams)
	called, ports, err := c.buildPorts(k.nc, k.objects, k.clients, k.members, way)
	if err != nil {
		return nil, err
	}
	heard, watchers, err := c.buildWatchers(k, func(node string, beat wire.Heartbeat) {
		view.RecordHeartbeat(node, beat)
		way.OnHeartbeat(node)
	})
	if err != nil {
		return nil, err
	}
	calls, err := c.newCallServer(k, heard)
	if err != nil {
		return nil, err
	}
	handled, err := c.buildReportReaders(k.nc, k.objects, called, k.metrics)
	if err != nil {
		return nil, err
	}
	keys := &tokenKeyPublisher{kube: k.clients, audiences: c.cfg.Scopes.TokenAudiences, publish: k.engine.SetStatic, log: c.log.Named("keys")}
	return append([]lifecycle.Part{
		{Name: "scopes", Start: k.scopes.Start},
		{Name: "keys", Start: keys.Start},
	}, slices.Concat(watchers, []lifecycle.Part{{Name: "calls", Start: calls.Start}}, ways, ports, handled, inspection)...), nil
}

// buildWatchers creates the parts that process the nodes' heartbeats, or detect missing ones. also is called with each
// heartbeat that is not from a duplicate.
func (c *Cloud) buildWatchers(k components, also func(node string, beat wire.Heartbeat)) (*duplicateDetector, []lifecycle.Part, error) {
	version := newKubeVersion(k.clients.Discovery(), c.log.Named("kubeversion"))
	monitor := nodes.New(k.clients, k.objects, k.members, k.ids.isRevoked, k.autonomy.Lookup, version.Version, c.metrics, c.log.Named("nodes"))
	k.ids.refreshNode = monitor.EnqueueNode
	k.autonomy.NotifyChanges(monitor.EnqueueIfLost)
	order := func(verb string) func(node, text string) error {
		return func(node, text string) error { return call.SendCommand(k.nc, node, verb, []byte(text)) }
	}
	all := func(node string) error { return order(call.VerbReports)(node, "") }
	alarms := k.events
	twins := newDuplicateDetector(k.members.Owns, order(call.VerbWho), order(call.VerbFence), all, alarms.warnNode, rand.Text, c.metrics, c.log.Named("twins"))
	auditor := newInventoryAuditor(k.members.Owns, k.engine, func(node string) error { return order(call.VerbResync)(node, "") },
		alarms.warnNode, c.metrics, c.log.Named("audit"))
	networks, err := c.cfg.Certificates.Prefixes()
	if err != nil {
		return nil, nil, err
	}
	names := csrs.AllowedNames{DirectHost: c.cfg.Gateway.Direct.Host, Networks: networks}
	signed := csrs.New(names, k.clients, k.objects, k.members.Owns, alarms.warnNode, c.metrics, c.log.Named("csrs"))
	lost := newLostNodeResync(k.objects, k.members.Owns, all,
		c.log.Named("unwell"))
	evictor, err := c.newEvictor(k.objects, k.members, alarms)
	if err != nil {
		return nil, nil, err
	}
	watch := c.newHubWatcher(k.nc, k.objects, k.members)
	beats, err := call.NewHeartbeats(k.nc, func(_ context.Context, node string, beat wire.Heartbeat) {
		if !twins.observeHeartbeat(node, beat, time.Now()) {
			return
		}
		monitor.RecordHeartbeat(node, beat, nodeProgress(k.engine, k.topology, node, beat))
		also(node, beat)
		k.engine.AdmitNode(node)
		auditor.compareInventory(node, beat, k.topology.Epoch(), time.Now())
		if beat.StreamEpoch == k.topology.Epoch() {
			k.engine.RecordAck(node, beat.Sequence)
		}
	}, k.metrics, c.log.Named("beats"))
	if err != nil {
		return nil, nil, err
	}
	return twins, []lifecycle.Part{
		{Name: "nodes", Start: monitor.Start},
		{Name: "kubeversion", Start: version.Start},
		{Name: "alarms", Start: alarms.Start},
		{Name: "autonomy", Start: k.autonomy.Start},
		{Name: "csrs", Start: signed.Start},
		evictor,
		{Name: "unwell", Start: lost.Start},
		{Name: "deaths", Start: watch.Start},
		{Name: "replicas", Start: c.buildPeerFencer(k, watch.lost).Start},
		{Name: "beats", Start: beats.Start},
	}, nil
}

// newCallServer creates the server of the nodes' calls.
func (c *Cloud) newCallServer(k components, twins *duplicateDetector) (*call.Server, error) {
	known := func(ctx context.Context, node string) bool {
		return k.objects.Get(ctx, client.ObjectKey{Name: node}, &corev1.Node{}) == nil
	}
	attached := func(node, instance string) { twins.probeAttached(node, instance, time.Now()) }
	attacher, err := publish.NewAttacher(k.nc, known, attached, k.metrics, c.log.Named("attach"))
	if err != nil {
		return nil, err
	}
	pieces, err := chunk.NewServer(k.nc, c.log.Named("pieces"))
	if err != nil {
		return nil, err
	}
	parts, err := chunk.NewStore(k.nc, c.log.Named("parts"))
	if err != nil {
		return nil, err
	}
	guard, err := newNamespaceGuard(c.protectedNamespaces(), c.rest, k.withheld)
	if err != nil {
		return nil, err
	}
	kube, err := newKubeCalls(c.rest, c.cfg.Impersonation == kubeversion.Classic, guard, c.metrics, c.log.Named("calls"))
	if err != nil {
		return nil, err
	}
	return call.NewServer(k.nc, k.ids.callHandlers(map[string]call.Handler{
		subject.VerbAttach: func(ctx context.Context, node string, request []byte) (any, error) {
			k.engine.AdmitNode(node)
			return attacher.Handle(ctx, node, request)
		},
		subject.VerbPiece:  pieces.Handle,
		subject.VerbPart:   parts.Handle,
		subject.VerbKube:   kube.Handle,
		subject.VerbWatch:  kube.Watch,
		subject.VerbScopes: scopesHandler(k.scopes),
		subject.VerbPing:   func(context.Context, string, []byte) (any, error) { return struct{}{}, nil },
	}), k.metrics, c.log.Named("calls"))
}

// buildReportReaders creates the consumers of the nodes' reports; called configures how the cloud reaches nodes.
func (c *Cloud) buildReportReaders(nc *nats.Conn, objects cache.Cache, called reports.NodeAddressing, metrics *metrics.Metrics) ([]lifecycle.Part, error) {
	readers := make(map[subject.Plane]*consume.ReportConsumer, 2)
	later := newRereportQueue(func(node string, key wire.Key) error { return call.RequestReport(nc, node, key) },
		func(node string) error { return call.SendCommand(nc, node, call.VerbReports, nil) }, c.log.Named("again"))
	gaveUp := map[subject.Plane]func(wire.Message){subject.Report: later.Schedule} // an event is not a state that can be requested again
	parts := []lifecycle.Part{{Name: "again", Start: later.Start}}
	for _, plane := range []subject.Plane{subject.Report, subject.Event} {
		stillLast := func(ctx context.Context, m wire.Message) (bool, error) { return readers[plane].StillLast(ctx, m) }
		overtaken := func(m wire.Message) {
			if err := call.RequestReport(nc, m.Node, m.Key); err != nil {
				c.log.Warn("node not asked to report again", zap.String("node", m.Node), zap.Error(err))
			}
		}
		registerer := prometheus.WrapRegistererWith(prometheus.Labels{"plane": string(plane)}, c.metrics)
		applier, err := reports.New(reports.Config{
			OnOvertaken: overtaken, Addressing: called, Protected: c.protectedNamespaces(), Metrics: registerer, ClassicImpersonation: c.cfg.Impersonation == kubeversion.Classic,
		},
			c.rest, objects, stillLast, c.log.Named(string(plane)))
		if err != nil {
			return nil, err
		}
		if readers[plane], err = consume.NewReportConsumer(plane, nc, applier.Handle, gaveUp[plane], metrics, c.log.Named(string(plane))); err != nil {
			return nil, err
		}
		parts = append(parts, lifecycle.Part{Name: string(plane) + "s", Start: readers[plane].Start})
	}
	return parts, nil
}

func checkConnected(nc *nats.Conn) func() error {
	return func() error {
		if !nc.IsConnected() {
			return errors.New("no connection to the hub")
		}
		return nil
	}
}

// checkClosed returns a check that succeeds once a channel is closed.
func checkClosed(ready <-chan struct{}, why string) func() error {
	return func() error {
		select {
		case <-ready:
			return nil
		default:
			return errors.New(why)
		}
	}
}
