package devicestatus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/devices"
)

const (
	// liveReads and liveBurst bound the reads of Devices from the apiserver, which a gateway causes that names devices which are not its own.
	liveReads, liveBurst = 20, 50
	// refusalTTL is how long the answer is remembered that a device is not a node's, maxRefusals how many.
	refusalTTL  = 10 * time.Second
	maxRefusals = 10_000
)

// ErrBusy says that too many unknown devices are asked for: ask again.
var ErrBusy = errors.New("too many devices are asked for that are not the node's")

// Device is what is needed of a Device.
type Device struct {
	ID  types.NamespacedName
	UID types.UID
	// Node is the one whose gateway holds the device (devices.HolderOf), and is believed.
	Node string
}

// Lookup finds the Devices of nodes.
type Lookup struct {
	cached   client.Reader
	live     dynamic.NamespaceableResourceInterface
	limiter  *rate.Limiter
	refusals *cache.LRUExpireCache
}

// gvk and gvr name the kinds.
func gvk(kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: devices.Group, Version: devices.Version, Kind: kind}
}

func gvr(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: devices.Group, Version: devices.Version, Resource: resource}
}

// NewLookup returns a Lookup. cached serves Devices from an informer's memory, as unstructured objects.
func NewLookup(cached client.Reader, kube dynamic.Interface) *Lookup {
	return &Lookup{
		cached: cached, live: kube.Resource(gvr(devices.DevicesResource)), limiter: rate.NewLimiter(liveReads, liveBurst),
		refusals: cache.NewLRUExpireCache(maxRefusals),
	}
}

// refusal is a key of refusals.
type refusal struct {
	node string
	id   types.NamespacedName
}

// OfNode returns the Device of a name, and whether the node holds it. The cache may be behind: what it does not know as the node's is
// read from the apiserver. A Device that is not the node's may be returned as it was some seconds ago, or without its UID.
func (l *Lookup) OfNode(ctx context.Context, node string, id types.NamespacedName) (device Device, found bool, err error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk(devices.DeviceKind))
	err = l.cached.Get(ctx, id, object)
	if err == nil {
		if device = deviceOf(object); device.Node == node {
			return device, true, nil
		}
	}
	if refused, ok := l.refusals.Get(refusal{node, id}); ok {
		device, _ = refused.(Device)
		return device, false, nil
	}
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return Device{}, false, fmt.Errorf("read device %s from the cache: %w", id, err)
	}
	if !l.limiter.Allow() {
		return Device{}, false, ErrBusy
	}
	device = Device{ID: id}
	object, err = l.live.Namespace(id.Namespace).Get(ctx, id.Name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return Device{}, false, fmt.Errorf("read device %s: %w", id, err)
	}
	if err == nil {
		if device = deviceOf(object); device.Node == node {
			return device, true, nil
		}
	}
	l.refusals.Add(refusal{node, id}, device, refusalTTL)
	return device, false, nil
}

// IsAssigned reports whether a node holds a device.
func (l *Lookup) IsAssigned(ctx context.Context, node, namespace, device string) (bool, error) {
	_, found, err := l.OfNode(ctx, node, types.NamespacedName{Namespace: namespace, Name: device})
	return found, err
}

func deviceOf(o *unstructured.Unstructured) Device {
	return Device{ID: types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}, UID: o.GetUID(), Node: devices.HolderOf(o)}
}
