package deviceclaim

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/devicestatus"
)

const (
	// scanInterval is how often all Devices are looked at, in memory: what a move waits for beside the heartbeat of its old gateway.
	scanInterval = time.Second
	// unservedInterval is how often a cluster is asked again that has no devices.
	unservedInterval = time.Minute
	// writesPerSecond and writesBurst bound the writes of one replica. After an update to the first version with claims each Device is claimed.
	writesPerSecond, writesBurst = 50, 100
)

// Rules returns the RBAC rules that cloudcore needs for this package.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{devices.Group}, Resources: []string{devices.DevicesResource}, Verbs: []string{"patch"}},
		{APIGroups: []string{devices.Group}, Resources: []string{devices.DeviceStatusesResource}, Verbs: []string{"create", "patch"}},
	}
}

// Deliveries says what gateways have confirmed, as desired.Engine knows it. Calls may be concurrent and must not block.
type Deliveries interface {
	// Removed reports whether a node is known to have an object no more. It is false while that is not known.
	Removed(node string, key wire.Key) bool
}

// Reconciler moves the claims of the nodes that this replica owns. Create it with New and call Start once.
type Reconciler struct {
	objects, statuses cache.Cache
	devices           dynamic.NamespaceableResourceInterface
	reports           dynamic.NamespaceableResourceInterface
	deliveries        Deliveries
	owner             controllers.Ownership
	limiter           *rate.Limiter
	moves             *prometheus.CounterVec
	waiting           prometheus.Gauge
	log               *zap.Logger
	// scanEvery holds the constant, or another value in tests.
	scanEvery time.Duration
}

// New returns a Reconciler that writes with kube, which has cloudcore's rights. objects serves Nodes and Devices, statuses DeviceStatuses.
func New(objects, statuses cache.Cache, kube dynamic.Interface, deliveries Deliveries, owner controllers.Ownership, metrics prometheus.Registerer, log *zap.Logger) *Reconciler {
	r := &Reconciler{
		objects: objects, statuses: statuses, devices: kube.Resource(devices.GroupVersion().WithResource(devices.DevicesResource)),
		reports:    kube.Resource(devices.GroupVersion().WithResource(devices.DeviceStatusesResource)),
		deliveries: deliveries, owner: owner, limiter: rate.NewLimiter(writesPerSecond, writesBurst), log: log, scanEvery: scanInterval,
		moves: promauto.With(metrics).NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: "deviceclaim", Name: "moves_total",
			Help: "Devices that have left a gateway for another, by why that was safe: removed (the old gateway has confirmed it), forced (an operator's annotation), node_missing, node_revoked, out_of_service, no_gateway.",
		}, []string{"cause"}),
		waiting: promauto.With(metrics).NewGauge(prometheus.GaugeOpts{
			Namespace: "frond", Subsystem: "deviceclaim", Name: "waiting",
			Help: "Devices that have moved and that no gateway is given, because the old one has not confirmed that it has removed them.",
		}),
	}
	for _, cause := range []string{causeRemoved, causeForced, causeMissing, causeRevoked, causeOutOfService, causeNoGateway} {
		r.moves.WithLabelValues(cause)
	}
	return r
}

// Start runs until ctx ends and then returns nil.
func (r *Reconciler) Start(ctx context.Context) error {
	nodes, err := controllers.StoreOf(ctx, r.objects, &corev1.Node{})
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	for {
		pause := r.scanEvery
		switch err := r.scan(ctx, nodes); {
		case meta.IsNoMatchError(err):
			pause = unservedInterval // this cluster has no devices
		case apierrors.IsForbidden(err):
			pause = unservedInterval
			r.log.Warn("devices not claimed: two gateways may drive a device that moves (deploy/rbac/cloudcore.yaml grants the right)", zap.Error(err))
		case err != nil && ctx.Err() == nil:
			r.log.Warn("claims of devices not moved, trying again", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// scan decides about all Devices whose holder is owned. Each failure leaves the other Devices alone; the last one is returned.
func (r *Reconciler) scan(ctx context.Context, nodes toolscache.Store) (failed error) {
	all, err := devicestatus.List(ctx, r.objects, devices.DeviceKind)
	if err != nil {
		return err
	}
	statuses, err := devicestatus.ByName(ctx, r.statuses, devices.DeviceStatusKind)
	if err != nil {
		return err
	}
	waiting := 0
	for i := range all {
		device := &all[i]
		holder := devices.HolderOf(device)
		if holder == "" || !r.owner.Owns(holder) {
			continue
		}
		in := r.inputOf(device, nodes)
		do, cause := decide(in)
		switch do {
		case claim, release:
			err = r.write(ctx, device, do, cause)
		case wait:
			waiting++
			err = nil
		case keep:
			err = nil
		}
		if err == nil {
			err = r.show(ctx, device, statuses[client.ObjectKeyFromObject(device)], do == wait && in.gateway == away)
		}
		if apierrors.IsForbidden(err) {
			return err // as would be all others
		}
		if err != nil {
			failed = err
		}
	}
	r.waiting.Set(float64(waiting))
	return failed
}

// inputOf returns what the decision about a Device needs.
func (r *Reconciler) inputOf(device *unstructured.Unstructured, nodes toolscache.Store) input {
	annotations := device.GetAnnotations()
	in := input{node: devices.AssignedNode(device), claimed: annotations[names.AnnotationDeviceHolder], forced: annotations[names.AnnotationForceMove]}
	if in.claimed == "" || in.claimed == in.node {
		return in
	}
	in.gateway = gatewayOf(nodeOf(nodes, in.claimed))
	in.removed = r.deliveries.Removed(in.claimed, wire.Key{
		Group: devices.Group, Resource: devices.DevicesResource, Namespace: device.GetNamespace(), Name: device.GetName(),
	})
	return in
}

// nodeOf returns a Node of a store, or nil.
func nodeOf(nodes toolscache.Store, name string) *corev1.Node {
	found, exists, err := nodes.GetByKey(name)
	if err != nil || !exists {
		return nil
	}
	node, _ := found.(*corev1.Node)
	return node
}

// write makes the node that a Device names its holder, in the version of the Device that this was decided for.
func (r *Reconciler) write(ctx context.Context, device *unstructured.Unstructured, do action, cause string) error {
	if do == claim && !r.limiter.Allow() {
		return nil // with the next scan; moves go first
	}
	if do == release {
		if err := r.limiter.Wait(ctx); err != nil {
			return fmt.Errorf("claim of a device: %w", err)
		}
	}
	if !r.owner.LeaseValid() {
		return nil // another replica may own the node
	}
	var holder any // null removes the annotation
	if node := devices.AssignedNode(device); node != "" {
		holder = node
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": device.GetUID(), "resourceVersion": device.GetResourceVersion(),
		"annotations": map[string]any{names.AnnotationDeviceHolder: holder, names.AnnotationForceMove: nil},
	}})
	if err != nil {
		return fmt.Errorf("encode the claim of a device: %w", err)
	}
	id, was := client.ObjectKeyFromObject(device), devices.HolderOf(device)
	_, err = r.devices.Namespace(id.Namespace).Patch(ctx, id.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: names.ManagerCloudcore})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil // the cache is behind: the next scan sees what is there
	case err != nil:
		return fmt.Errorf("claim of device %s: %w", id, err)
	case do == release:
		r.moves.WithLabelValues(cause).Inc()
		r.log.Info("device moved", zap.Stringer("device", id), zap.String("from", was), zap.String("node", devices.AssignedNode(device)), zap.String("reason", cause))
	}
	return nil
}
