package cloud

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/kubeversion"
	"github.com/frond-edge/frond/cloud/addressindex"
	"github.com/frond-edge/frond/cloud/epoch"
	"github.com/frond-edge/frond/cloud/kube"
	"github.com/frond-edge/frond/cloud/kubecalls"
	"github.com/frond-edge/frond/cloud/membership"
	"github.com/frond-edge/frond/cloud/partitions"
	"github.com/frond-edge/frond/controllers/desired"
	groups "github.com/frond-edge/frond/controllers/groups/membership"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/controllers/scopes"
	"github.com/frond-edge/frond/internal/health"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

// foundation is what all parts are made of.
type foundation struct {
	cfg       config.CloudCore
	registry  *prometheus.Registry
	log       *zap.Logger
	hub       *hubConns
	stores    hubStores
	layout    subject.Layout
	clients   *kube.Clients
	objects   cache.Cache
	nodes     addressindex.Nodes
	addresses addressindex.Addresses
	members   *membership.Members
	// groups is who is in which NodeGroup, for all that decide by it.
	groups      *groups.View
	groupClient *rest.RESTClient
	events      *kube.EventRecorder
	withheld    *kubecalls.WithheldEvents
	metrics     *metrics.Metrics
}

// layoutOf returns the layout of the hub that a replica is configured for.
func layoutOf(cfg config.CloudCore) subject.Layout {
	return subject.Layout{Cells: cfg.Identity.Cells, Partitions: cfg.Identity.Partitions}
}

// newFoundation creates the clients, the cache with all its indices, and what many parts use.
func (c *Cloud) newFoundation(ctx context.Context, hub *hubConns, stores hubStores) (f *foundation, err error) {
	f = &foundation{cfg: c.cfg, registry: c.metrics, log: c.log, hub: hub, stores: stores, layout: layoutOf(c.cfg), metrics: metrics.New(c.metrics)}
	if f.clients, err = kube.NewClients(c.rest, c.cfg.Impersonation == kubeversion.Classic); err != nil {
		return nil, err
	}
	if f.objects, err = podcache.New(f.clients.ReadRetry); err != nil {
		return nil, err
	}
	if f.nodes, err = addressindex.NewNodes(ctx, f.objects); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	if f.addresses, err = addressindex.NewAddresses(ctx, f.objects); err != nil {
		return nil, fmt.Errorf("cache: %w", err)
	}
	f.members = membership.New(c.cfg.ID, stores.members, func() []membership.Link { return membership.Links(hub.all()...) }, c.log.Named("members"))
	if f.groupClient, err = groups.NewGroupClient(f.clients.Config); err != nil {
		return nil, err
	}
	f.groups = groups.New(f.objects, groups.ListGroups(f.groupClient), c.log.Named("groups"))
	f.events = kube.NewEventRecorder(c.cfg.ID, f.clients.Own, c.log.Named("alarms"))
	f.withheld = kubecalls.NewWithheldEvents(f.events.WarnNode)
	return f, nil
}

// publishing are the parts that decide what every node gets.
type publishing struct {
	engine   *desired.Engine
	topology *topology.Reconciler
	scopes   *scopes.GrantController
}

// assembleParts creates all parts, each after those that it calls, and returns them in the order in which they start.
func (c *Cloud) assembleParts(ctx context.Context, hub *hubConns, stores hubStores) ([]lifecycle.Part, error) {
	f, err := c.newFoundation(ctx, hub, stores)
	if err != nil {
		return nil, err
	}
	countsEpoch := func() bool { return f.members.Owns(epoch.LeaseName) } // not a node's name, but it distributes equally well
	history, err := epoch.Open(ctx, epoch.Interval, f.clients.Own, stores.registry, countsEpoch, c.log.Named("history"))
	if err != nil {
		return nil, err
	}
	keeper, err := partitions.NewKeeper(f.hub.nc, stores.registry, f.layout, f.members.Owns, f.registry, c.log.Named("partitions"))
	if err != nil {
		return nil, err
	}
	p, publishers, err := buildPublishing(f, history)
	if err != nil {
		return nil, err
	}
	admission, err := buildAdmission(f)
	if err != nil {
		return nil, err
	}
	enforcement, services, err := buildNodeServices(f, p, admission)
	if err != nil {
		return nil, err
	}
	server := newHealthServer(f, p, admission)
	// Nodes with records are admitted before anything else is read.
	return slices.Concat([]lifecycle.Part{{Name: "health", Start: server.Start, Ready: server.Ready()}}, admission.parts(enforcement), []lifecycle.Part{
		{Name: "keeper", Start: p.topology.Start, Ready: p.topology.Ready()},
		{Name: "members", Start: f.members.Start},
		{Name: "partitions", Start: keeper.Start},
		{Name: "history", Start: history.Start},
		{Name: "cache", Start: f.objects.Start},
		{Name: "membership", Start: f.groups.Start},
	}, publishers, services), nil
}

// newHealthServer creates the server that reports when this replica is ready: then the previous one may stop.
func newHealthServer(f *foundation, p publishing, admission *admission) *health.Server {
	checks := []health.Check{
		{Name: "hub", Ready: checkConnected(f.hub.nc)},
		{Name: "hub-streams", Ready: checkClosed(p.topology.Ready(), "the streams are not in place")},
		{Name: "kubernetes", Ready: checkClosed(p.engine.Ready(), "the objects of the cluster are not all read")},
	}
	if admission != nil {
		checks = append(checks, health.Check{Name: "links", Ready: checkClosed(admission.links.Synced(), "the other cloudcores were not asked yet whose links there are")})
	}
	return health.New(f.cfg.Listen, f.registry, checks...)
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
