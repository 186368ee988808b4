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
	"github.com/frond-edge/frond/streams"
)

// startTimeout bounds what must be asked before anything can start; the process ends after it and is started again.
const startTimeout = time.Minute

// Cloud is one cloudcore replica.
type Cloud struct {
	cfg     config.CloudCore
	rest    *rest.Config
	metrics *prometheus.Registry
	log     *zap.Logger
}

// New makes a replica that talks to the apiserver of kube. metrics is served on /metrics.
func New(cfg config.CloudCore, kube *rest.Config, metrics *prometheus.Registry, log *zap.Logger) (*Cloud, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	kube = rest.CopyConfig(kube)
	kube.UserAgent = "frond-cloudcore"
	kube.QPS = -1 // the apiserver's own priority and fairness decides; reports are coalesced in the stream
	return &Cloud{cfg: cfg, rest: kube, metrics: metrics, log: log}, nil
}

// Start runs the replica until ctx ends, then leaves the members, hands back what it has in its hands and returns nil. After
// ErrRestored the process should begin anew.
func (c *Cloud) Start(ctx context.Context) error {
	reconnects := prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: "frond", Name: "hub_reconnects_total", Help: "Connections to the hub after the first ones.",
	})
	if err := c.metrics.Register(reconnects); err != nil {
		return fmt.Errorf("hub: %w", err)
	}
	if err := c.metrics.Register(certs.NewExpiry(certs.Files(c.certificates()))); err != nil {
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
	// Bulk through a tunnel fills the connection that carries it; beats and delivery do not wait behind it.
	tunnels, err := dialHub(c.cfg.Hub, "cloudcore "+c.cfg.ID+" tunnels", reconnects, c.log.Named("tunnels"))
	if err != nil {
		return err
	}
	defer tunnels.Close()
	ids, err := c.identity(reconnects)
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
	parts, err := c.assemble(sctx, nc, writer, tunnels, ids, kv)
	if err != nil {
		return err
	}
	return lifecycle.Run(ctx, c.log, parts...)
}

// ensureHub makes the hub's topology, trying until the hub has a leader.
func ensureHub(ctx context.Context, nc *nats.Conn, replicas int, log *zap.Logger) (jetstream.KeyValue, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, err
	}
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		err := streams.Ensure(ctx, js, streams.Hub(replicas))
		if err == nil {
			return js.KeyValue(ctx, streams.MembersBucket)
		}
		log.Info("hub not ready", zap.Error(err))
		select {
		case <-ctx.Done():
			return nil, errors.Join(err, ctx.Err())
		case <-ticker.C:
		}
	}
}

// assemble makes the parts in the order in which they start.
func (c *Cloud) assemble(ctx context.Context, nc, writer, tunnels *nats.Conn, ids *identities, kv jetstream.KeyValue) ([]lifecycle.Part, error) {
	objects, addresses, err := newCaches(ctx, c.rest)
	if err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	metrics := streams.NewMetrics(c.metrics)
	members := NewMembers(c.cfg.ID, kv, func() []hubLink { return hubLinks(nc, writer, tunnels, ids.auth, ids.sys) }, c.log.Named("members"))
	publisher, err := streams.NewPublisher(writer, metrics)
	if err != nil {
		return nil, err
	}
	history, err := c.history(ctx, nc, members)
	if err != nil {
		return nil, err
	}
	teller, err := c.teller(objects, members)
	if err != nil {
		return nil, err
	}
	var engine *desired.Engine
	asked, err := c.scopes(ctx, nc, objects, members, func() *desired.Engine { return engine })
	if err != nil {
		return nil, err
	}
	clients, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	alarms := newAlarms(c.cfg.ID, clients, c.log.Named("alarms"))
	withheld := newWithheldEvents(alarms.warn)
	cfg := c.desired(history, teller, withheld)
	cfg.Scopes = asked.Granted
	if engine, err = desired.New(cfg, objects, publisher, members, c.log.Named("desired")); err != nil {
		return nil, err
	}
	keeper, err := streams.NewKeeper(nc, streams.Hub(c.cfg.Replicas), func() { engine.Reload() }, c.log.Named("keeper"))
	if err != nil {
		return nil, err
	}
	letIn, err := ids.parts(c, objects, clients, members, alarms)
	if err != nil {
		return nil, err
	}
	up, err := c.upward(core{
		nc: nc, tunnels: tunnels, ids: ids, objects: objects, addresses: addresses, clients: clients, members: members,
		engine: engine, asked: asked, keeper: keeper, metrics: metrics, alarms: alarms, withheld: withheld,
	})
	if err != nil {
		return nil, err
	}
	server := c.health(nc, keeper, engine, ids.learnt)
	// Who is known comes in before all else is read.
	return slices.Concat([]lifecycle.Part{{Name: "health", Start: server.Start, Ready: server.Ready()}}, letIn, []lifecycle.Part{
		{Name: "keeper", Start: keeper.Start, Ready: keeper.Ready()},
		{Name: "members", Start: members.Start},
		{Name: "history", Start: history.Start},
		{Name: "cache", Start: objects.Start},
		{Name: "holds", Start: teller.Start},
		{Name: "desired", Start: engine.Start, Ready: engine.Ready()},
	}, up), nil
}

// health serves what says that this replica is ready: then the one before may go. learnt is nil where it lets nobody in.
func (c *Cloud) health(nc *nats.Conn, keeper *streams.Keeper, engine *desired.Engine, learnt <-chan struct{}) *health.Server {
	checks := []health.Check{
		{Name: "hub", Ready: connected(nc)},
		{Name: "hub-streams", Ready: closed(keeper.Ready(), "the streams are not in place")},
		{Name: "kubernetes", Ready: closed(engine.Ready(), "the objects of the cluster are not all read")},
	}
	if learnt != nil {
		checks = append(checks, health.Check{Name: "links", Ready: closed(learnt, "the other cloudcores were not asked yet whose links there are")})
	}
	return health.New(c.cfg.Listen, c.metrics, checks...)
}

// core is what all that answers nodes stands on.
type core struct {
	nc, tunnels *nats.Conn
	ids         *identities
	objects     cache.Cache
	addresses   addressCache
	clients     kubernetes.Interface
	members     *Members
	engine      *desired.Engine
	asked       *scopes.Keeper
	keeper      *streams.Keeper
	metrics     *streams.Metrics
	alarms      *alarms
	withheld    *withheldEvents
	calm        *autonomy.Keeper // of upward
}

// upward makes the parts that answer nodes.
func (c *Cloud) upward(k core) ([]lifecycle.Part, error) {
	groups, err := autonomy.Groups(c.rest)
	if err != nil {
		return nil, err
	}
	k.calm = autonomy.New(k.clients, k.objects, groups, k.members, k.alarms.raise, c.metrics, c.log.Named("autonomy"))
	view, inspection, err := c.inspection(k.nc, k.objects, k.members, k.calm)
	if err != nil {
		return nil, err
	}
	way, ways, err := c.ways(k)
	if err != nil {
		return nil, err
	}
	k.ids.cut(way.Cut)
	called, ports, err := c.direct(k.nc, k.objects, k.clients, k.members, way)
	if err != nil {
		return nil, err
	}
	heard, watchers, err := c.watchers(k, func(node string, beat wire.Beat) {
		view.Beat(node, beat)
		way.Heard(node)
	})
	if err != nil {
		return nil, err
	}
	calls, err := c.calls(k, heard)
	if err != nil {
		return nil, err
	}
	handled, err := c.reports(k.nc, k.objects, called, k.metrics)
	if err != nil {
		return nil, err
	}
	keys := &tokenKeys{kube: k.clients, audiences: c.cfg.Scopes.TokenAudiences, provide: k.engine.Provide, log: c.log.Named("keys")}
	return append([]lifecycle.Part{
		{Name: "scopes", Start: k.asked.Start},
		{Name: "keys", Start: keys.Start},
	}, slices.Concat(watchers, []lifecycle.Part{{Name: "calls", Start: calls.Start}}, ways, ports, handled, inspection)...), nil
}

// watchers makes the parts that hear the nodes' beats, or miss them. also hears each beat that is no clone's.
func (c *Cloud) watchers(k core, also func(node string, beat wire.Beat)) (*twins, []lifecycle.Part, error) {
	version := newKubeVersion(k.clients.Discovery(), c.log.Named("kubeversion"))
	monitor := nodes.New(k.clients, k.objects, k.members, k.ids.revoked, k.calm.Of, version.Get, c.metrics, c.log.Named("nodes"))
	k.ids.look = monitor.Look
	k.calm.Tell(monitor.Review)
	order := func(verb string) func(node, text string) error {
		return func(node, text string) error { return streams.Order(k.nc, node, verb, []byte(text)) }
	}
	all := func(node string) error { return order(streams.VerbReports)(node, "") }
	alarms := k.alarms
	twins := newTwins(k.members.Owns, order(streams.VerbWho), order(streams.VerbFence), all, alarms.warn, rand.Text, c.metrics, c.log.Named("twins"))
	auditor := newAudit(k.members.Owns, k.engine, func(node string) error { return order(streams.VerbResync)(node, "") },
		alarms.warn, c.metrics, c.log.Named("audit"))
	networks, err := c.cfg.Certificates.Prefixes()
	if err != nil {
		return nil, nil, err
	}
	names := csrs.Names{DirectHost: c.cfg.Gateway.Direct.Host, Networks: networks}
	signed := csrs.New(names, k.clients, k.objects, k.members.Owns, alarms.warn, c.metrics, c.log.Named("csrs"))
	lost := newUnwell(k.objects, k.members.Owns, all,
		c.log.Named("unwell"))
	evictor, err := c.evictor(k.objects, k.members, alarms)
	if err != nil {
		return nil, nil, err
	}
	watch := c.deaths(k.nc, k.objects, k.members)
	beats, err := streams.NewBeats(k.nc, func(_ context.Context, node string, beat wire.Beat) {
		if !twins.hear(node, beat, time.Now()) {
			return
		}
		monitor.Beat(node, beat, progressOf(k.engine, k.keeper, node, beat))
		also(node, beat)
		k.engine.Serve(node)
		auditor.beat(node, beat, k.keeper.Epoch(), time.Now())
		if beat.StreamEpoch == k.keeper.Epoch() {
			k.engine.Acked(node, beat.Sequence)
		}
	}, k.metrics, c.log.Named("beats"))
	if err != nil {
		return nil, nil, err
	}
	return twins, []lifecycle.Part{
		{Name: "nodes", Start: monitor.Start},
		{Name: "kubeversion", Start: version.Start},
		{Name: "alarms", Start: alarms.Start},
		{Name: "autonomy", Start: k.calm.Start},
		{Name: "csrs", Start: signed.Start},
		evictor,
		{Name: "unwell", Start: lost.Start},
		{Name: "deaths", Start: watch.Start},
		{Name: "replicas", Start: c.severer(k, watch.died).Start},
		{Name: "beats", Start: beats.Start},
	}, nil
}

// calls makes the server of what nodes ask.
func (c *Cloud) calls(k core, twins *twins) (*streams.Calls, error) {
	known := func(ctx context.Context, node string) bool {
		return k.objects.Get(ctx, client.ObjectKey{Name: node}, &corev1.Node{}) == nil
	}
	attached := func(node, instance string) { twins.attached(node, instance, time.Now()) }
	attacher, err := streams.NewAttacher(k.nc, known, attached, k.metrics, c.log.Named("attach"))
	if err != nil {
		return nil, err
	}
	pieces, err := streams.NewPieces(k.nc, c.log.Named("pieces"))
	if err != nil {
		return nil, err
	}
	parts, err := streams.NewParts(k.nc, c.log.Named("parts"))
	if err != nil {
		return nil, err
	}
	guard, err := newNamespaceGuard(c.protected(), c.rest, k.withheld)
	if err != nil {
		return nil, err
	}
	kube, err := newKubeCalls(c.rest, c.cfg.Impersonation == kubeversion.Classic, guard, c.metrics, c.log.Named("calls"))
	if err != nil {
		return nil, err
	}
	return streams.NewCalls(k.nc, k.ids.handlers(map[string]streams.CallHandler{
		streams.VerbAttach: func(ctx context.Context, node string, request []byte) (any, error) {
			k.engine.Serve(node)
			return attacher.Handle(ctx, node, request)
		},
		streams.VerbPiece:  pieces.Handle,
		streams.VerbPart:   parts.Handle,
		streams.VerbKube:   kube.Handle,
		streams.VerbWatch:  kube.Watch,
		streams.VerbScopes: wants(k.asked),
		streams.VerbPing:   func(context.Context, string, []byte) (any, error) { return struct{}{}, nil },
	}), k.metrics, c.log.Named("calls"))
}

// reports makes the readers of what nodes report; called says how the cloud reaches nodes.
func (c *Cloud) reports(nc *nats.Conn, objects cache.Cache, called reports.Ways, metrics *streams.Metrics) ([]lifecycle.Part, error) {
	readers := make(map[streams.Plane]*streams.Reports, 2)
	later := newAgain(func(node string, key wire.Key) error { return streams.Nudge(nc, node, key) },
		func(node string) error { return streams.Order(nc, node, streams.VerbReports, nil) }, c.log.Named("again"))
	gaveUp := map[streams.Plane]func(wire.Message){streams.Report: later.later} // an event is not a state to ask for
	parts := []lifecycle.Part{{Name: "again", Start: later.Start}}
	for _, plane := range []streams.Plane{streams.Report, streams.Event} {
		stillLast := func(ctx context.Context, m wire.Message) (bool, error) { return readers[plane].StillLast(ctx, m) }
		overtaken := func(m wire.Message) {
			if err := streams.Nudge(nc, m.Node, m.Key); err != nil {
				c.log.Warn("node not asked to report again", zap.String("node", m.Node), zap.Error(err))
			}
		}
		registerer := prometheus.WrapRegistererWith(prometheus.Labels{"plane": string(plane)}, c.metrics)
		applier, err := reports.New(reports.Config{
			Overtaken: overtaken, Ways: called, Protected: c.protected(), Metrics: registerer, ClassicImpersonation: c.cfg.Impersonation == kubeversion.Classic,
		},
			c.rest, objects, stillLast, c.log.Named(string(plane)))
		if err != nil {
			return nil, err
		}
		if readers[plane], err = streams.NewReports(plane, nc, applier.Handle, gaveUp[plane], metrics, c.log.Named(string(plane))); err != nil {
			return nil, err
		}
		parts = append(parts, lifecycle.Part{Name: string(plane) + "s", Start: readers[plane].Start})
	}
	return parts, nil
}

func connected(nc *nats.Conn) func() error {
	return func() error {
		if !nc.IsConnected() {
			return errors.New("no connection to the hub")
		}
		return nil
	}
}

// closed is a check that holds once a channel is closed.
func closed(ready <-chan struct{}, why string) func() error {
	return func() error {
		select {
		case <-ready:
			return nil
		default:
			return errors.New(why)
		}
	}
}
