package devicewarnings

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/devicestatus"
)

const (
	// scanInterval is how often devices are looked at.
	scanInterval = 10 * time.Second
	// unservedInterval is how often a cluster is asked again that has no devices.
	unservedInterval = time.Minute
)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}}
}

// Recorder records the warnings about the devices of owned nodes. Create it with New and call Start once.
type Recorder struct {
	objects, statuses cache.Cache
	kube              kubernetes.Interface
	owner             controllers.Ownership
	events            *prometheus.CounterVec
	log               *zap.Logger
	// changed are the devices to look at.
	changed *changes
	// What follows belongs to the goroutine of Start: connected has the owned nodes with devices, warned the present warnings by device.
	schedule  *schedule
	connected map[string]bool
	warned    map[string]warned
	// scanEvery holds the constant, or another value in tests.
	scanEvery time.Duration
}

// warned is what is to be looked at of one device.
type warned struct {
	device   *unstructured.Unstructured
	node     string
	warnings []Warning
}

// New returns a Recorder. objects serves Nodes, Devices and DeviceModels, statuses DeviceStatuses (devicestatus.NewStatuses).
func New(objects, statuses cache.Cache, kube kubernetes.Interface, owner controllers.Ownership, metrics prometheus.Registerer, log *zap.Logger) *Recorder {
	return &Recorder{
		objects: objects, statuses: statuses, kube: kube, owner: owner, log: log, schedule: newSchedule(), scanEvery: scanInterval,
		changed: newChanges(), warned: map[string]warned{},
		events: promauto.With(metrics).NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: "devicewarnings", Name: "events_total",
			Help: "Warnings about devices: recorded, or deferred because the node has used up its budget (counted each ten seconds until it is recorded).",
		}, []string{"result"}),
	}
}

// Start records until ctx ends and then returns nil.
func (r *Recorder) Start(ctx context.Context) error {
	nodes, err := controllers.StoreOf(ctx, r.objects, &corev1.Node{})
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	defer r.changed.stop()
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: r.kube.CoreV1().Events(corev1.NamespaceAll)})
	recorder := broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: names.ManagerCloudcore})
	for {
		pause := r.scanEvery
		switch err := r.scan(ctx, nodes, recorder); {
		case meta.IsNoMatchError(err):
			pause = unservedInterval // this cluster has no devices
		case err != nil && ctx.Err() == nil:
			r.log.Warn("devices not looked at for warnings, trying again", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// scan looks at the devices that have changed, or whose gateway has, and records what is due.
func (r *Recorder) scan(ctx context.Context, nodes toolscache.Store, recorder record.EventRecorder) error {
	found, err := r.follow(ctx)
	if err != nil {
		return err
	}
	owned := found.devices.ListIndexFuncValues(devicestatus.NodeIndex)
	owned = slices.DeleteFunc(owned, func(node string) bool { return !r.owner.Owns(node) })
	r.compareGateways(found, nodes, owned)
	for key := range r.changed.take() {
		r.decide(found, key)
	}
	present, seen := map[subject]bool{}, map[string]bool{}
	for _, node := range owned {
		seen[node] = true
	}
	for _, about := range r.warned {
		for _, w := range about.warnings {
			present[subject{about.device.GetUID(), w.Reason}] = true
			r.record(recorder, about.node, about.device, w)
		}
	}
	r.schedule.prune(present, seen)
	return nil
}

// compareGateways marks the devices of gateways that are owned or connected and were not before, and the other way round, as changed.
func (r *Recorder) compareGateways(found followed, nodes toolscache.Store, owned []string) {
	connected := make(map[string]bool, len(owned))
	for _, node := range owned {
		connected[node] = isConnected(nodes, node)
		if before, was := r.connected[node]; !was || before != connected[node] {
			r.changed.addIndexed(found.devices, devicestatus.NodeIndex, node)
		}
	}
	for node := range r.connected {
		if _, still := connected[node]; !still {
			r.changed.addIndexed(found.devices, devicestatus.NodeIndex, node)
		}
	}
	r.connected = connected
}

// decide keeps the warnings about a device, if its gateway is owned.
func (r *Recorder) decide(found followed, key string) {
	delete(r.warned, key)
	device := devicestatus.Get(found.devices, key)
	if device == nil {
		return
	}
	node, _, _ := unstructured.NestedString(device.Object, "spec", "nodeName")
	connected, owned := r.connected[node]
	if !owned {
		return
	}
	in := Input{Device: device, Status: statusOf(devicestatus.Get(found.statuses, key), device.GetUID()), Connected: connected}
	in.ModelExists = devicestatus.Get(found.models, modelKey(device)) != nil
	if warnings := Decide(in); len(warnings) > 0 {
		r.warned[key] = warned{device, node, warnings}
	}
}

// statusOf returns the status if it is of the Device with a UID, or nil.
func statusOf(status *unstructured.Unstructured, device types.UID) *unstructured.Unstructured {
	if status == nil {
		return nil
	}
	if owners := status.GetOwnerReferences(); len(owners) == 0 || owners[0].UID != device {
		return nil
	}
	return status
}

// isConnected reports whether a node is a gateway with a link.
func isConnected(nodes toolscache.Store, name string) bool {
	found, exists, err := nodes.GetByKey(name)
	if err != nil || !exists {
		return false
	}
	node, ok := found.(*corev1.Node)
	if !ok {
		return false
	}
	for _, c := range node.Status.Conditions {
		if c.Type == names.ConditionConnected {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// record records a warning if it is due.
func (r *Recorder) record(recorder record.EventRecorder, node string, device *unstructured.Unstructured, w Warning) {
	switch r.schedule.due(node, device.GetUID(), w, time.Now()) {
	case due:
		recorder.Event(&corev1.ObjectReference{
			APIVersion: devices.GroupVersion().String(), Kind: devices.DeviceKind, Namespace: device.GetNamespace(), Name: device.GetName(), UID: device.GetUID(),
		}, corev1.EventTypeWarning, w.Reason, w.Message)
		r.events.WithLabelValues("recorded").Inc()
	case deferred:
		r.events.WithLabelValues("deferred").Inc()
	case quiet:
	}
}
