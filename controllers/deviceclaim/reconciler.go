package deviceclaim

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
)

const (
	// scanInterval is how often the Devices are looked at whose claim is not settled, in memory: what a move waits for beside the heartbeat of its old gateway.
	scanInterval = time.Second
	// unservedInterval is how often a cluster is asked again that has no devices.
	unservedInterval = time.Minute
	// writesPerSecond and writesBurst bound the moves of one replica, and its other writes. After an update to the first version with claims each Device is claimed.
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
	// limiter is of all writes but those of moves, which wait behind no other.
	limiter, moveLimiter *rate.Limiter
	attempts             *attempts
	moves                *prometheus.CounterVec
	waiting              prometheus.Gauge
	log                  *zap.Logger
	// scanEvery holds the constant, or another value in tests.
	scanEvery time.Duration
}

// New returns a Reconciler that writes with kube, which has cloudcore's rights. objects serves Nodes and Devices, statuses DeviceStatuses.
func New(objects, statuses cache.Cache, kube dynamic.Interface, deliveries Deliveries, owner controllers.Ownership, metrics prometheus.Registerer, log *zap.Logger) *Reconciler {
	r := &Reconciler{
		objects: objects, statuses: statuses, devices: kube.Resource(devices.GroupVersion().WithResource(devices.DevicesResource)),
		reports:    kube.Resource(devices.GroupVersion().WithResource(devices.DeviceStatusesResource)),
		deliveries: deliveries, owner: owner, limiter: rate.NewLimiter(writesPerSecond, writesBurst),
		moveLimiter: rate.NewLimiter(writesPerSecond, writesBurst), attempts: newAttempts(retryFirst, retryMost), log: log, scanEvery: scanInterval,
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
		case errors.Is(err, errNoRight):
			pause = unservedInterval
			fallthrough
		case apierrors.IsForbidden(err):
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

// decided is a Device with what is to be done with its claim.
type decided struct {
	device *unstructured.Unstructured
	do     action
	cause  string
	// away: the holder's gateway is, so that it does not report that it holds the device.
	away bool
}

// scan decides about the Devices whose claim is not settled and whose holder is owned: first those that move, then the others, then the conditions. What
// fails leaves the rest alone; the last failure is returned.
func (r *Reconciler) scan(ctx context.Context, nodes toolscache.Store) error {
	found, err := indexesOf(ctx, r.objects, r.statuses)
	if err != nil {
		return err
	}
	unsettled, err := valuesOf(found.devices, unsettledIndex)
	if err != nil {
		return err
	}
	r.attempts.begin()
	waiting, all := 0, make([]decided, 0, len(unsettled))
	for _, device := range unsettled {
		if d, owned := r.decisionOf(device, nodes); owned {
			all = append(all, d)
			if d.do == wait {
				waiting++
			}
		}
	}
	r.waiting.Set(float64(waiting))
	slices.SortStableFunc(all, func(a, b decided) int { return cmp.Compare(b.do, a.do) }) // the greatest action first
	for _, d := range all {
		if d.do != release && d.do != claim && d.do != removeOrder {
			continue
		}
		key := fmt.Sprint("claim/", d.device.GetUID(), "/", d.do, "/", devices.AssignedNode(d.device))
		if err := r.attempts.try(key, func() error { return r.write(ctx, d) }); err != nil {
			return err
		}
	}
	r.showAll(ctx, nodes, found, all)
	return r.attempts.failed
}

// decisionOf decides about a Device; owned: this replica owns its holder. One that nobody holds is everyone's.
func (r *Reconciler) decisionOf(device *unstructured.Unstructured, nodes toolscache.Store) (d decided, owned bool) {
	if holder := devices.HolderOf(device); holder != "" && !r.owner.Owns(holder) {
		return d, false
	}
	in := r.inputOf(device, nodes)
	do, cause := decide(in)
	return decided{device, do, cause, in.gateway == away}, true
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

// write does what was decided, in the version of the Device that it was decided for: it makes the node that a Device names its holder, unless only an order
// is to be removed. What exceeds the rate comes with the next scan.
func (r *Reconciler) write(ctx context.Context, d decided) error {
	limiter, device := r.limiter, d.device
	if d.do == release {
		limiter = r.moveLimiter
	}
	if !limiter.Allow() || !r.owner.LeaseValid() { // else another replica may own the node
		return nil
	}
	annotations := map[string]any{names.AnnotationForceMove: nil} // null removes an annotation
	if d.do != removeOrder {
		annotations[names.AnnotationDeviceHolder] = nil
		if node := devices.AssignedNode(device); node != "" {
			annotations[names.AnnotationDeviceHolder] = node
		}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": device.GetUID(), "resourceVersion": device.GetResourceVersion(), "annotations": annotations,
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
	case d.do == release:
		r.moves.WithLabelValues(d.cause).Inc()
		r.log.Info("device moved", zap.Stringer("device", id), zap.String("from", was), zap.String("node", devices.AssignedNode(device)), zap.String("reason", d.cause))
	}
	return nil
}
