package devicestatus

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
)

// StateUnknown is the state of a device whose gateway is away, one of KubeEdge's words.
const StateUnknown = "unknown"

// The reasons for which a state is unknown.
const (
	reasonNotConnected = "GatewayNotConnected"
	reasonNoNode       = "NodeMissing"
)

const (
	// scanInterval is how often the devices of gateways that are away are looked for.
	scanInterval = 5 * time.Second
	// rereadScans is after how many scans the statuses of a gateway that stays away, and all that are marked, are read again: for a report that
	// came late, and for gateways that are back.
	rereadScans = 12
	// unservedInterval is how often a cluster is asked again that has no devices.
	unservedInterval = time.Minute
	// settleTime is how long a gateway that is back has for its own reports. It makes none if its link was up all the time.
	settleTime = time.Minute
)

// Absence marks the state of the devices of gateways that are away as unknown, with the time since when: also of a device that has never told a state,
// of one whose report comes late, and of one that moves to such a gateway. The gateway reports all its devices again when its link is back. If it
// was not the link that failed, the state of before is restored: what the gateway has not reported since has not changed.
type Absence struct {
	applier           *Applier
	objects, statuses cache.Cache
	owner             controllers.Ownership
	log               *zap.Logger
	// scanEvery and settle hold the constants, or other values in tests.
	scanEvery, settle time.Duration
	// marked are the gateways that are away and have nothing more to mark; restored is when all marked statuses were read last. Both belong to the
	// goroutine of Start.
	marked   map[string]markedGateway
	restored time.Time
}

// markedGateway is a gateway whose devices were all marked at a time, with what shows that there may be others.
type markedGateway struct {
	at, since time.Time
	devices   int
}

// NewAbsence returns an Absence. objects serves Nodes and Devices, statuses DeviceStatuses (NewStatuses).
func NewAbsence(applier *Applier, objects, statuses cache.Cache, owner controllers.Ownership, log *zap.Logger) *Absence {
	return &Absence{applier: applier, objects: objects, statuses: statuses, owner: owner, log: log, scanEvery: scanInterval, settle: settleTime, marked: map[string]markedGateway{}}
}

// Start runs until ctx ends and then returns nil.
func (a *Absence) Start(ctx context.Context) error {
	nodes, err := controllers.StoreOf(ctx, a.objects, &corev1.Node{})
	if err != nil {
		return controllers.IgnoreCanceled(ctx, err)
	}
	for {
		pause := a.scanEvery
		switch err := a.scan(ctx, nodes); {
		case meta.IsNoMatchError(err):
			pause = unservedInterval // this cluster has no devices
		case err != nil && ctx.Err() == nil:
			a.log.Warn("devices of gateways that are away not marked, trying again", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
	}
}

// presence is what is known of a gateway.
type presence struct {
	// reason says why it is away; "" if it is there, or has never been a gateway.
	reason string
	since  time.Time
}

// presenceOf reads a Node, which is nil if there is none.
func presenceOf(node *corev1.Node, now time.Time) presence {
	if node == nil {
		return presence{reasonNoNode, now}
	}
	for _, c := range node.Status.Conditions {
		switch {
		case c.Type != names.ConditionConnected:
		case c.Status == corev1.ConditionTrue:
			return presence{since: c.LastTransitionTime.Time}
		default:
			return presence{reasonNotConnected, c.LastTransitionTime.Time}
		}
	}
	return presence{since: node.CreationTimestamp.Time}
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

// scan marks the devices of all owned gateways that are away, and restores the state of others. It reads the devices of gateways that are away and the
// statuses that are marked, and of the others only the names of their gateways.
func (a *Absence) scan(ctx context.Context, nodes toolscache.Store) error {
	found, err := a.index(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range found.devices.ListIndexFuncValues(NodeIndex) {
		if !a.owner.Owns(name) {
			continue
		}
		gateway := presenceOf(nodeOf(nodes, name), time.Now())
		if gateway.reason == "" {
			delete(a.marked, name)
			continue
		}
		errs = append(errs, a.markDevices(ctx, nodes, found, name, gateway))
	}
	if time.Since(a.restored) >= a.rereadInterval() {
		a.restored = time.Now()
		maps.DeleteFunc(a.marked, func(_ string, m markedGateway) bool { return time.Since(m.at) > 2*a.rereadInterval() }) // has no devices now
		errs = append(errs, a.restoreDevices(ctx, nodes, found))
	}
	return errors.Join(errs...)
}

func (a *Absence) rereadInterval() time.Duration { return rereadScans * a.scanEvery }

// markDevices marks the devices of a gateway that is away.
func (a *Absence) markDevices(ctx context.Context, nodes toolscache.Store, found indexes, name string, gateway presence) (err error) {
	all, err := found.devices.ByIndex(NodeIndex, name)
	if err != nil {
		return fmt.Errorf("devices of %s: %w", name, err)
	}
	// The time since when a Node is missing is not known, and so is none.
	seen := markedGateway{at: time.Now(), since: gateway.since, devices: len(all)}
	if gateway.reason == reasonNoNode {
		seen.since = time.Time{}
	}
	last, known := a.marked[name]
	if known && last.since.Equal(seen.since) && last.devices == seen.devices && time.Since(last.at) < a.rereadInterval() {
		return nil
	}
	a.marked[name] = seen
	for _, object := range all {
		o, ok := object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		device := deviceOf(o)
		if status := Get(found.statuses, device.ID.String()); status != nil && a.stepFor(gateway, status) == mark {
			delete(a.marked, name) // it is looked at again until there is nothing to mark
			err = cmp.Or(a.correct(ctx, nodes, device, status), err)
		}
	}
	return err
}

// restoreDevices restores the state of marked devices whose gateways are back.
func (a *Absence) restoreDevices(ctx context.Context, nodes toolscache.Store, found indexes) (err error) {
	marked, err := found.statuses.ByIndex(markedIndex, markedValue)
	if err != nil {
		return fmt.Errorf("marked states: %w", err)
	}
	gateways := map[string]presence{}
	for _, object := range marked {
		status, ok := object.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		o := Get(found.devices, types.NamespacedName{Namespace: status.GetNamespace(), Name: status.GetName()}.String())
		if o == nil {
			continue
		}
		device := deviceOf(o)
		if device.Node == "" || !a.owner.Owns(device.Node) {
			continue
		}
		gateway, known := gateways[device.Node]
		if !known {
			gateway = presenceOf(nodeOf(nodes, device.Node), time.Now())
			gateways[device.Node] = gateway
		}
		if a.stepFor(gateway, status) == restore {
			err = cmp.Or(a.correct(ctx, nodes, device, status), err)
		}
	}
	return err
}

// step is what is to be done with a DeviceStatus.
type step int

const (
	nothing step = iota
	mark
	restore
)

func (a *Absence) stepFor(gateway presence, status *unstructured.Unstructured) step {
	switch marked := isMarked(status); {
	case gateway.reason != "" && !marked:
		return mark
	case gateway.reason == "" && marked && time.Since(gateway.since) > a.settle:
		return restore
	}
	return nothing
}

// isMarked reports whether the state of a DeviceStatus is unknown because its gateway is away, and not because the device said so.
func isMarked(status *unstructured.Unstructured) bool {
	state, _, _ := unstructured.NestedString(status.Object, "status", "state")
	reason, _, _ := unstructured.NestedString(status.Object, "status", "extensions", extensionKey, "state", "reason")
	return state == StateUnknown && reason != ""
}

// extensionKey is ours in status.extensions.
const extensionKey = "frond"

// correct sets the state of one device, unless its gateway is back, or away, or has just reported.
func (a *Absence) correct(ctx context.Context, nodes toolscache.Store, device Device, status *unstructured.Unstructured) error {
	if err := a.applier.limiter.Wait(ctx); err != nil {
		return err
	}
	gateway := presenceOf(nodeOf(nodes, device.Node), time.Now())
	next := a.stepFor(gateway, status)
	if next == nothing {
		return nil
	}
	patch, err := patchOf(next, gateway, status)
	if err != nil {
		return err
	}
	in := a.applier.statuses.Namespace(device.ID.Namespace)
	_, err = in.Patch(ctx, device.ID.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the cache is behind: the next scan sees what is there
	}
	if err != nil {
		return fmt.Errorf("state of device %s: %w", device.ID, err)
	}
	action := StateUnknown
	if next == restore {
		action = "restore"
	}
	a.applier.applied.WithLabelValues(action).Inc()
	return nil
}

// patchOf returns the patch of a DeviceStatus as it is.
func patchOf(next step, gateway presence, status *unstructured.Unstructured) ([]byte, error) {
	var state, details any // null removes a field
	if next == mark {
		info := map[string]any{"reason": gateway.reason, "since": metav1.NewTime(gateway.since.UTC())}
		if before, _, _ := unstructured.NestedString(status.Object, "status", "state"); before != "" {
			info["before"] = before
		}
		state, details = StateUnknown, info
	} else if before, _, _ := unstructured.NestedString(status.Object, "status", "extensions", extensionKey, "state", "before"); before != "" {
		state = before
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": status.GetResourceVersion()},
		"status":   map[string]any{"state": state, "extensions": map[string]any{extensionKey: map[string]any{"state": details}}},
	})
	if err != nil {
		return nil, fmt.Errorf("encode state: %w", err)
	}
	return patch, nil
}
