package cloud

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/devicecall"
	"github.com/frond-edge/frond/cloud/identity/links"
	"github.com/frond-edge/frond/cloud/inspect"
	"github.com/frond-edge/frond/cloud/kube"
	"github.com/frond-edge/frond/cloud/membership"
	"github.com/frond-edge/frond/cloud/nodehealth"
	"github.com/frond-edge/frond/controllers/autonomy"
	"github.com/frond-edge/frond/controllers/csrs"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/evictions"
	"github.com/frond-edge/frond/controllers/nodes"
	"github.com/frond-edge/frond/controllers/reports"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/streams/tunnel"
)

// buildNodeServices creates the parts that serve nodes. enforcer is among the parts of admission; nil without it.
func buildNodeServices(f *foundation, p publishing, admission *admission) (enforcer *links.Enforcer, parts []lifecycle.Part, err error) {
	dialer, err := tunnel.NewDialer(f.hub.tunnels, tunnel.Config{}, tunnel.NewMetrics(f.registry), f.log)
	if err != nil {
		return nil, nil, fmt.Errorf("tunnels: %w", err)
	}
	way, ways, err := buildGateway(f, admission, dialer)
	if err != nil {
		return nil, nil, err
	}
	groups := autonomy.NewNodeGroups(f.groups)
	version := kube.NewVersionReader(f.clients.Own.Discovery(), f.log.Named("kubeversion"))
	monitor := nodes.New(leaseBudget(f.cfg.Leases), f.clients.Own, f.objects, f.members, admission.isRevoked, groups.Lookup, version.Version, f.registry, f.log.Named("nodes"))
	tolerations := autonomy.New(f.clients.Own, f.objects, groups, f.members, f.events.RecordEvent, monitor.EnqueueIfLost, f.registry, f.log.Named("autonomy"))
	view, inspection, err := buildInspection(f, groups, admission, dialer)
	if err != nil {
		return nil, nil, err
	}
	addressing, allocation, err := buildPorts(f, way)
	if err != nil {
		return nil, nil, err
	}
	health, checks, err := buildNodeHealth(f, p)
	if err != nil {
		return nil, nil, err
	}
	beats, err := call.NewHeartbeats(f.hub.nc, func(_ context.Context, node string, beat wire.Heartbeat) {
		if !health.duplicates.ObserveHeartbeat(node, beat, time.Now()) {
			return
		}
		monitor.RecordHeartbeat(node, beat, nodeProgress(p.engine, p.topology, node, beat))
		view.RecordHeartbeat(node, beat)
		way.OnHeartbeat(node)
		p.engine.AdmitNode(node)
		health.auditor.CompareInventory(node, beat, p.topology.Epoch(node), time.Now())
		if beat.StreamEpoch == p.topology.Epoch(node) {
			p.engine.RecordAck(node, beat.Sequence)
		}
	}, f.metrics, f.log.Named("beats"))
	if err != nil {
		return nil, nil, err
	}
	calls, readers, err := buildUpward(f, p, admission, health.duplicates, addressing)
	if err != nil {
		return nil, nil, err
	}
	features, err := buildFeatures(f, admission, dialer)
	if err != nil {
		return nil, nil, err
	}
	return admission.newEnforcer(f, way.CloseStreams, monitor.EnqueueNode), slices.Concat([]lifecycle.Part{
		{Name: "nodes", Start: monitor.Start},
		{Name: "kubeversion", Start: version.Start},
		{Name: "alarms", Start: f.events.Start},
		{Name: "autonomy", Start: tolerations.Start},
	}, features, checks, []lifecycle.Part{
		{Name: "beats", Start: beats.Start},
		{Name: "calls", Start: calls.Start},
	}, ways, allocation, readers, inspection), nil
}

// buildFeatures creates the controllers of groups, applications and rules.
func buildFeatures(f *foundation, admission *admission, dialer *tunnel.Dialer) ([]lifecycle.Part, error) {
	applications, err := buildApplications(f)
	if err != nil {
		return nil, err
	}
	rules, err := buildRules(f, admission, dialer)
	if err != nil {
		return nil, err
	}
	return []lifecycle.Part{buildGroups(f), applications, rules}, nil
}

// buildUpward creates the parts that take what nodes send: calls, reports, and what they say of devices.
func buildUpward(f *foundation, p publishing, admission *admission, duplicates *nodehealth.DuplicateDetector, addressing reports.NodeAddressing) (*call.Server, []lifecycle.Part, error) {
	devices, marking, err := buildDevices(f, p)
	if err != nil {
		return nil, nil, err
	}
	calls, err := newCallServer(f, p, admission, duplicates, devices)
	if err != nil {
		return nil, nil, err
	}
	tasks, carrying, err := buildJobs(f)
	if err != nil {
		return nil, nil, err
	}
	readers, err := buildReportReaders(f, addressing, devices.statuses, tasks)
	return calls, slices.Concat(readers, marking, carrying), err
}

func leaseBudget(l config.Leases) nodes.LeaseBudget {
	return nodes.LeaseBudget{PerSecond: l.PerSecond, LongestPeriod: time.Duration(l.LongestPeriod)}
}

// nodeProgress compares a heartbeat's cursor with what the engine has published. A cursor of another incarnation of the
// stream proves nothing about this one: such a node counts as having nothing.
func nodeProgress(engine *desired.Engine, reconciler *topology.Reconciler, node string, beat wire.Heartbeat) func() nodes.Progress {
	return func() (p nodes.Progress) {
		epoch, sequence := reconciler.Epoch(node), uint64(0)
		if beat.StreamEpoch == epoch {
			sequence = beat.Sequence
		}
		p.Behind, p.Oldest, p.Loaded = engine.Progress(node, sequence)
		p.Loaded = p.Loaded && epoch != ""
		return p
	}
}

// healthChecks are the parts that evaluate heartbeats.
type healthChecks struct {
	duplicates *nodehealth.DuplicateDetector
	auditor    *nodehealth.InventoryAuditor
}

// buildNodeHealth creates the parts that detect what is wrong with nodes, with other replicas, and with the hub.
func buildNodeHealth(f *foundation, p publishing) (healthChecks, []lifecycle.Part, error) {
	command := func(verb string) func(node, text string) error {
		return func(node, text string) error { return call.SendCommand(f.hub.nc, node, verb, []byte(text)) }
	}
	requestReports := func(node string) error { return command(call.VerbReports)(node, "") }
	owns, warn := f.members.Owns, f.events.WarnNode
	checks := healthChecks{
		duplicates: nodehealth.NewDuplicateDetector(owns, nodehealth.NodeCommands{
			SendProbe: command(call.VerbWho), FenceAgent: command(call.VerbFence), RequestReports: requestReports,
		}, warn, rand.Text, f.registry, f.log.Named("twins")),
		auditor: nodehealth.NewInventoryAuditor(owns, p.engine, func(node string) error { return command(call.VerbResync)(node, "") },
			warn, f.registry, f.log.Named("audit")),
	}
	networks, err := f.cfg.Certificates.Prefixes()
	if err != nil {
		return checks, nil, err
	}
	names := csrs.AllowedNames{DirectHost: f.cfg.Gateway.Direct.Host, Networks: networks}
	approver := csrs.New(names, f.clients.Own, f.objects, owns, warn, f.registry, f.log.Named("csrs"))
	evictor := evictions.New(protectedNamespaces(f.cfg), f.objects, owns, f.deletePodAsNode, warn, f.registry, f.log.Named("evictions"))
	lost := nodehealth.NewLostNodeResync(f.objects, owns, requestReports, f.log.Named("unwell"))
	watcher := newHubWatcher(f, membership.NodeCommands{ServerLost: command(call.VerbDied), ServerStops: command(call.VerbStops)})
	fencer := membership.NewPeerFencer(f.members.FailedPeers(), f.hub.kickClient, watcher.Lost(), f.registry, f.log.Named("replicas"))
	return checks, []lifecycle.Part{
		{Name: "csrs", Start: approver.Start},
		{Name: "evictions", Start: evictor.Start},
		{Name: "unwell", Start: lost.Start},
		{Name: "deaths", Start: watcher.Start},
		{Name: "replicas", Start: fencer.Start},
	}, nil
}

// deletePodAsNode deletes a pod of a protected namespace, as the gateway that it is bound to.
func (f *foundation) deletePodAsNode(ctx context.Context, pod *corev1.Pod) error {
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
	return f.clients.AsNode.CoreV1().Pods(pod.Namespace).Delete(reports.WithNode(ctx, pod.Spec.NodeName), pod.Name, *options)
}

// kickClient closes a connection to a server of the hub. If cloudcores do not admit gateways, it closes nothing.
func (h *hubConns) kickClient(ctx context.Context, server string, client uint64) (bool, error) {
	if h.sys == nil {
		return false, nil
	}
	return links.KickClient(ctx, h.sys, server, client)
}

// newHubWatcher creates the watcher of the hub's servers.
func newHubWatcher(f *foundation, nodes membership.NodeCommands) *membership.HubWatcher {
	dial := func(url string, opts ...nats.Option) (*nats.Conn, error) {
		cfg := f.cfg.Hub
		cfg.URLs = []string{url}
		// These connections carry nothing; the watcher logs the loss of one once.
		return dialHub(cfg, "cloudcore "+f.cfg.ID+" watch", prometheus.NewCounter(prometheus.CounterOpts{}), zap.NewNop(), append(opts, nats.IgnoreDiscoveredServers())...)
	}
	return membership.NewHubWatcher(f.cfg.Hub.URLs, dial, f.ownedNodes, nodes, f.members, f.log.Named("deaths"))
}

// ownedNodes lists the nodes that this replica owns.
func (f *foundation) ownedNodes(ctx context.Context) ([]string, error) {
	var list corev1.NodeList
	if err := f.objects.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	var own []string
	for i := range list.Items {
		if name := list.Items[i].Name; f.members.Owns(name) {
			own = append(own, name)
		}
	}
	return own, nil
}

// buildInspection creates the view of all nodes, and the server of that view if an address is configured.
func buildInspection(f *foundation, groups *autonomy.NodeGroups, admission *admission, dialer *tunnel.Dialer) (*inspect.View, []lifecycle.Part, error) {
	hub, err := publish.NewInspector(f.hub.nc, f.layout)
	if err != nil {
		return nil, nil, err
	}
	view := inspect.NewView(f.cfg.ID, f.objects, f.members, hub, func(node *corev1.Node) (value, group string) {
		value, group, _ = groups.Lookup(node)
		return value, group
	})
	if f.cfg.Inspect.Address == "" {
		return view, nil, nil
	}
	server := inspect.NewServer(inspect.Config(f.cfg.Inspect), f.clients.Own, view, f.log.Named("inspect"))
	calls, err := buildDeviceCalls(f, admission, dialer)
	if err != nil {
		return nil, nil, err
	}
	server.Handle(devicecall.Pattern, calls)
	return view, []lifecycle.Part{{Name: "inspect", Start: server.Start, Ready: server.Ready()}}, nil
}
