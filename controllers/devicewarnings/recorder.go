package devicewarnings

import (
	"context"
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
	// scanInterval is how often all devices are looked at.
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
	schedule          *schedule // of the goroutine of Start
	// scanEvery holds the constant, or another value in tests.
	scanEvery time.Duration
}

// New returns a Recorder. objects serves Nodes, Devices and DeviceModels, statuses DeviceStatuses (devicestatus.NewStatuses).
func New(objects, statuses cache.Cache, kube kubernetes.Interface, owner controllers.Ownership, metrics prometheus.Registerer, log *zap.Logger) *Recorder {
	return &Recorder{
		objects: objects, statuses: statuses, kube: kube, owner: owner, log: log, schedule: newSchedule(), scanEvery: scanInterval,
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

// scan looks at all devices of owned nodes.
func (r *Recorder) scan(ctx context.Context, nodes toolscache.Store, recorder record.EventRecorder) error {
	all, err := devicestatus.List(ctx, r.objects, devices.DeviceKind)
	if err != nil || len(all) == 0 {
		return err
	}
	models, err := devicestatus.ByName(ctx, r.objects, devices.DeviceModelKind)
	if err != nil {
		return err
	}
	statuses, err := devicestatus.ByName(ctx, r.statuses, devices.DeviceStatusKind)
	if err != nil {
		return err
	}
	present, away, seen := map[subject]bool{}, map[types.UID]bool{}, map[string]bool{}
	for i := range all {
		device := &all[i]
		node := devices.AssignedNode(device)
		if node == "" || !r.owner.Owns(node) {
			continue
		}
		seen[node] = true
		id := types.NamespacedName{Namespace: device.GetNamespace(), Name: device.GetName()}
		in := Input{Device: device, Status: statusOf(statuses[id], device.GetUID()), Connected: isConnected(nodes, node)}
		model, _, _ := unstructured.NestedString(device.Object, "spec", "deviceModelRef", "name")
		in.ModelExists = models[types.NamespacedName{Namespace: device.GetNamespace(), Name: model}] != nil
		if !in.Connected {
			away[device.GetUID()] = true
		}
		for _, w := range Decide(in) {
			present[subject{device.GetUID(), w.Reason}] = true
			r.record(recorder, node, device, w)
		}
	}
	r.schedule.prune(present, away, seen)
	return nil
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
