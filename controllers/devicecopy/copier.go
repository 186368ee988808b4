package devicecopy

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
)

const (
	// copyInterval is the least time between two writes of a Device.
	copyInterval = time.Second
	// unservedInterval is how often a cluster is asked again that has no devices.
	unservedInterval = time.Minute
	// resyncInterval is how often all are compared, for a status that somebody else has written.
	resyncInterval = 5 * time.Minute
	// retryBase and retryMax bound the pauses after failed writes, workers how many are made at a time.
	retryBase, retryMax = 200 * time.Millisecond, time.Minute
	workers             = 4
)

// Rules returns the RBAC rules that cloudcore needs for this package alone.
func Rules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{{APIGroups: []string{devices.Group}, Resources: []string{devices.DevicesResource}, Verbs: []string{"patch"}}}
}

// Copier copies the DeviceStatuses of owned nodes. Create it with New and call Start once.
type Copier struct {
	objects, statuses cache.Cache
	devices           dynamic.NamespaceableResourceInterface
	owner             controllers.Ownership
	limiter           *rate.Limiter
	queue             controllers.Queue[types.NamespacedName]
	writes            *prometheus.CounterVec
	log               *zap.Logger
	// complaint limits what is logged: without the right to write, each Device fails.
	complaint rate.Sometimes
	// interval holds the constant, or another value in tests.
	interval time.Duration

	mu sync.Mutex
	// written says when each Device was written last, for those with a DeviceStatus. Guarded by mu.
	written map[types.NamespacedName]time.Time
}

// New returns a Copier that writes at most perSecond Devices a second. objects serves Devices, statuses whole DeviceStatuses.
func New(perSecond int, objects, statuses cache.Cache, kube dynamic.Interface, owner controllers.Ownership, metrics prometheus.Registerer, log *zap.Logger) *Copier {
	return &Copier{
		objects: objects, statuses: statuses, devices: kube.Resource(devices.GroupVersion().WithResource(devices.DevicesResource)), owner: owner,
		limiter: rate.NewLimiter(rate.Limit(perSecond), perSecond), queue: controllers.NewQueue[types.NamespacedName](retryBase, retryMax), log: log,
		writes: promauto.With(metrics).NewCounterVec(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: "devicecopy", Name: "writes_total",
			Help: "Copies of a DeviceStatus into the status of its Device, by result: ok, conflict (the Device has changed, tried again), refused (by Kubernetes, tried again).",
		}, []string{"result"}),
		complaint: rate.Sometimes{Interval: time.Minute}, interval: copyInterval, written: map[types.NamespacedName]time.Time{},
	}
}

// Start copies until ctx ends and then returns nil.
func (c *Copier) Start(ctx context.Context) error {
	defer c.queue.ShutDown()
	for {
		err := c.run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if !meta.IsNoMatchError(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(unservedInterval):
		}
	}
}

// run follows the DeviceStatuses. The error is a NoMatch error if the cluster has none.
func (c *Copier) run(ctx context.Context) error {
	kind := &unstructured.Unstructured{}
	kind.SetGroupVersionKind(devices.GroupVersion().WithKind(devices.DeviceStatusKind))
	enqueue := func(o *unstructured.Unstructured) { c.queue.Add(client.ObjectKeyFromObject(o)) }
	stop, err := controllers.Follow(ctx, c.statuses, kind, enqueue, func(o *unstructured.Unstructured) { c.forget(client.ObjectKeyFromObject(o)) })
	defer stop()
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		controllers.ProcessQueue(gctx, c.queue, workers, c.process)
		return nil
	})
	g.Go(func() error {
		c.resync(gctx)
		return nil
	})
	return g.Wait()
}

// resync enqueues all DeviceStatuses when nodes have changed their owners, and now and then.
func (c *Copier) resync(ctx context.Context) {
	for {
		changed := c.owner.Changed()
		all := &unstructured.UnstructuredList{}
		all.SetGroupVersionKind(devices.GroupVersion().WithKind(devices.DeviceStatusKind + "List"))
		if err := c.statuses.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil && ctx.Err() == nil {
			c.log.Warn("statuses of devices not listed, trying again later", zap.Error(err))
		}
		for i := range all.Items {
			c.queue.Add(client.ObjectKeyFromObject(&all.Items[i]))
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-time.After(resyncInterval):
		}
	}
}

func (c *Copier) forget(id types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.written, id)
}

// reserve notes a write of a Device now, or returns how long it has to wait.
func (c *Copier) reserve(id types.NamespacedName) (wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wait = c.interval - time.Since(c.written[id]); wait <= 0 {
		c.written[id] = time.Now()
	}
	return wait
}

// process copies the status of one device if it differs, and logs its errors.
func (c *Copier) process(ctx context.Context, id types.NamespacedName) error {
	patch, err := c.patchOf(ctx, id)
	if err != nil || patch == nil {
		return err
	}
	if wait := c.reserve(id); wait > 0 {
		c.queue.AddAfter(id, wait)
		return nil
	}
	if err := c.limiter.Wait(ctx); err != nil {
		return fmt.Errorf("copy the status of device %s: %w", id, err)
	}
	_, err = c.devices.Namespace(id.Namespace).Patch(ctx, id.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: names.ManagerCloudcore})
	switch {
	case err == nil:
		c.writes.WithLabelValues("ok").Inc()
		return nil
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err): // the cache is behind
		c.writes.WithLabelValues("conflict").Inc()
		return err
	case ctx.Err() == nil:
		c.writes.WithLabelValues("refused").Inc()
		c.complaint.Do(func() {
			c.log.Warn("status not copied into a Device, trying again (deploy/rbac/cloudcore.yaml grants it)", zap.Stringer("device", id), zap.Error(err))
		})
	}
	return err
}

// patchOf returns what is to be written of a device, nil for nothing.
func (c *Copier) patchOf(ctx context.Context, id types.NamespacedName) ([]byte, error) {
	status, err := read(ctx, c.statuses, devices.DeviceStatusKind, id)
	if err != nil || status == nil {
		return nil, err
	}
	device, err := read(ctx, c.objects, devices.DeviceKind, id)
	if err != nil || device == nil {
		return nil, err
	}
	if node, _, _ := unstructured.NestedString(device.Object, "spec", "nodeName"); node == "" || !c.owner.Owns(node) {
		return nil, nil
	}
	return patchFor(device, status)
}

// read returns an object of a cache, nil if there is none.
func read(ctx context.Context, objects client.Reader, kind string, id types.NamespacedName) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(devices.GroupVersion().WithKind(kind))
	err := objects.Get(ctx, id, o)
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return nil, nil //nolint:nilnil // none is no error
	case err != nil:
		return nil, fmt.Errorf("read %s %s: %w", kind, id, err)
	}
	return o, nil
}
