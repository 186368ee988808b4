package devicestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
)

const (
	// StateUnknown is the state of a device whose gateway is away, one of KubeEdge's words.
	StateUnknown = "unknown"
	// scanInterval is how often the devices of gateways that went away are looked for.
	scanInterval = 5 * time.Second
)

// Absence marks the state of the devices of gateways that are away as unknown, with the time since when. The gateway reports all its devices again
// when it is back.
type Absence struct {
	applier *Applier
	objects cache.Cache
	owner   controllers.Ownership
	log     *zap.Logger
	// scanEvery holds the constant, or another value in tests.
	scanEvery time.Duration

	mu sync.Mutex
	// away has the gateways that are away, since when, and whether their devices are marked. Guarded by mu.
	away map[string]*absent
}

type absent struct {
	since  time.Time
	marked bool
}

// NewAbsence returns an Absence. objects serves Nodes and Devices.
func NewAbsence(applier *Applier, objects cache.Cache, owner controllers.Ownership, log *zap.Logger) *Absence {
	return &Absence{applier: applier, objects: objects, owner: owner, log: log, scanEvery: scanInterval, away: map[string]*absent{}}
}

// Start runs until ctx ends and then returns nil.
func (a *Absence) Start(ctx context.Context) error {
	stop, err := controllers.Follow(ctx, a.objects, &corev1.Node{}, a.observe, func(n *corev1.Node) { a.forget(n.Name) })
	defer stop()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(a.scanEvery)
	defer ticker.Stop()
	for {
		if err := a.scan(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("devices of gateways that are away not marked, trying again", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// observe records whether a gateway is away. One that never was there has reported nothing.
func (a *Absence) observe(node *corev1.Node) {
	for _, c := range node.Status.Conditions {
		if c.Type != names.ConditionConnected {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			a.forget(node.Name)
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.away[node.Name] == nil {
			a.away[node.Name] = &absent{since: c.LastTransitionTime.Time}
		}
	}
}

func (a *Absence) forget(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.away, node)
}

// unmarked returns the owned gateways that are away and whose devices are not marked.
func (a *Absence) unmarked() map[string]time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := map[string]time.Time{}
	for node, at := range a.away {
		if !at.marked && a.owner.Owns(node) {
			list[node] = at.since
		}
	}
	return list
}

func (a *Absence) setMarked(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if at := a.away[node]; at != nil {
		at.marked = true
	}
}

// scan marks the devices of all gateways that have gone away.
func (a *Absence) scan(ctx context.Context) error {
	since := a.unmarked()
	if len(since) == 0 {
		return nil
	}
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(gvk(devices.DeviceKind + "List"))
	err := a.objects.List(ctx, list, client.UnsafeDisableDeepCopy)
	if meta.IsNoMatchError(err) {
		return nil // this cluster has no devices
	}
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	failed := map[string]error{}
	for i := range list.Items {
		device := deviceOf(&list.Items[i])
		at, away := since[device.Node]
		if !away {
			continue
		}
		if err := a.mark(ctx, device, at); err != nil {
			failed[device.Node] = err
		}
	}
	for node := range since {
		if failed[node] == nil {
			a.setMarked(node)
		} else {
			err = failed[node]
		}
	}
	return err
}

// mark sets the state of one device, unless its gateway is back.
func (a *Absence) mark(ctx context.Context, device Device, since time.Time) error {
	if err := a.applier.limiter.Wait(ctx); err != nil {
		return err
	}
	in := a.applier.statuses.Namespace(device.ID.Namespace)
	object, err := in.Get(ctx, device.ID.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if state, _, _ := unstructured.NestedString(object.Object, "status", "state"); state == StateUnknown || state == "" {
		return nil
	}
	a.mu.Lock()
	_, away := a.away[device.Node]
	a.mu.Unlock()
	if !away {
		return nil
	}
	before, _, _ := unstructured.NestedString(object.Object, "status", "state")
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": object.GetResourceVersion()},
		"status": map[string]any{"state": StateUnknown, "extensions": map[string]any{"frond": map[string]any{"state": map[string]any{
			"before": before, "reason": "GatewayNotConnected", "since": metav1.NewTime(since.UTC()),
		}}}},
	})
	if err != nil {
		return fmt.Errorf("encode state: %w", err)
	}
	_, err = in.Patch(ctx, device.ID.Name, "application/merge-patch+json", patch, metav1.PatchOptions{FieldManager: manager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the gateway has just reported
	}
	if err == nil {
		a.applier.applied.WithLabelValues(StateUnknown).Inc()
	}
	return err
}
