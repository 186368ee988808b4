package query

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi/cloudcall"
	"github.com/frond-edge/frond/leaf/localapi/completeness"
	"github.com/frond-edge/frond/leaf/localapi/kinds"
	"github.com/frond-edge/frond/leaf/localapi/objectstore"
	"github.com/frond-edge/frond/leaf/localapi/records"
	"github.com/frond-edge/frond/leaf/localapi/respond"
	"github.com/frond-edge/frond/leaf/store"
)

// nodeView is what the node sees: all that the gateway has.
type nodeView struct {
	node     string
	resource *kinds.Resource
	objects  objectstore.Store
	complete *completeness.Evaluator
	cloud    *cloudFetcher
}

// findObject answers from the store. For an object that is not stored it asks the cloud, unless the store proves its absence.
func (v *nodeView) findObject(ctx context.Context, key wire.Key) (runtime.Object, error) {
	entry, err := v.objects.Get(key)
	switch {
	case err == nil:
		if v.resource.Completeness == kinds.PartiallyHeld {
			v.cloud.absences.Remove(ctx, key)
		}
		obj, _, err := v.resource.Decode(entry)
		return obj, err
	case !errors.Is(err, store.ErrNotFound):
		return nil, err
	case v.complete.ProvesAbsence(v.resource, key):
		return nil, notFound(v.resource, key)
	}
	return v.cloud.fetchObject(ctx, v.resource, key, v.objects)
}

func notFound(r *kinds.Resource, key wire.Key) error {
	return apierrors.NewNotFound(r.GVR.GroupResource(), key.Name)
}

// prepareList waits until a list is complete: until the store has attached. A list by name of a kind that is delivered
// only as far as pods need it waits until that object is known to exist or not. It returns the object if the cloud sent it.
func (v *nodeView) prepareList(ctx context.Context, namespace string, f *kinds.Filter) (runtime.Object, error) {
	if v.resource.Placement == kinds.InMemory {
		return nil, nil
	}
	if v.resource.Completeness == kinds.PartiallyHeld {
		if namespace == "" {
			namespace = f.Namespace
		}
		if f.Name != "" && (!v.resource.Namespaced || namespace != "") {
			return v.waitForObject(ctx, v.resource.ObjectKey(namespace, f.Name))
		}
	}
	if !v.resource.Namespaced && v.resource.Completeness == kinds.Authoritative {
		// The node itself may be known before anything was delivered: it registered itself.
		if _, err := v.objects.Get(v.resource.ObjectKey("", v.node)); err == nil {
			return nil, nil
		}
	}
	if !v.complete.WaitAttached(ctx) {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf(
			"%s are not known: this gateway has not been in step with the cloud since its store was made or found damaged", v.resource.GVR.Resource))
	}
	if v.resource.Optional {
		return nil, v.complete.CheckDelivered(v.resource)
	}
	return nil, nil
}

func (v *nodeView) checkComplete(string, *metainternalversion.ListOptions, uint64) error { return nil }

// cloudFetcher gets objects from the cloud for the node, and remembers which do not exist.
type cloudFetcher struct {
	calls    *cloudcall.Client
	absences *records.Absences
}

// fetchObject asks the cloud for an object of objects. It remembers the answer "not found", so that an optional object stays
// optional when the link is down later.
func (c *cloudFetcher) fetchObject(ctx context.Context, r *kinds.Resource, key wire.Key, objects objectstore.Store) (runtime.Object, error) {
	obj := r.Object()
	err := c.calls.Object(ctx, http.MethodGet, r.CloudPath(key), nil, obj)
	switch {
	case err == nil:
		m, err := meta.Accessor(obj)
		if err != nil {
			return nil, err
		}
		m.SetManagedFields(nil)
		// The cloud's version has no meaning here; with the present revision a watch from it sees the delivery.
		m.SetResourceVersion(kinds.LocalVersion(objects.Revision()))
		if r.Decorate != nil {
			r.Decorate(obj)
		}
		return obj, nil
	case apierrors.IsNotFound(err) && r.Completeness == kinds.PartiallyHeld:
		c.absences.Add(ctx, key)
	case respond.IsOffline(err) && c.absences.IsKnown(key):
		return nil, notFound(r, key)
	}
	return nil, err
}

// programView is what programs other than the node see: of a kind only what the cloud keeps complete here.
type programView struct {
	resource *kinds.Resource
	objects  objectstore.Store
	complete *completeness.Evaluator
	cloud    *cloudFetcher
}

// findObject answers a get. A stored object is kept up to date. Any other is absent if the gateway holds all of its kind;
// else the cloud is asked. That answer keeps the cloud's version, as its reader may want to write: a Lease, for example.
func (v *programView) findObject(ctx context.Context, key wire.Key) (runtime.Object, error) {
	entry, err := v.objects.Get(key)
	if err == nil && v.hasServedVersion(entry) {
		obj, _, err := v.resource.Decode(entry)
		return obj, err
	}
	if err != nil && v.resource.Completeness != kinds.FullyDelivered {
		if _, all := v.complete.HoldsAll(v.resource, key.Namespace, nil); all {
			return nil, notFound(v.resource, key)
		}
	}
	obj := v.resource.Object()
	if err := v.cloud.calls.Object(ctx, http.MethodGet, v.resource.CloudPath(key), nil, obj); err != nil {
		return nil, err
	}
	if v.resource.Decorate != nil {
		v.resource.Decorate(obj)
	}
	return obj, nil
}

// hasServedVersion reports whether an object is stored in the version that this endpoint serves.
func (v *programView) hasServedVersion(entry store.Entry) bool {
	var t metav1.TypeMeta
	if err := json.Unmarshal(entry.Object, &t); err != nil {
		return false
	}
	return t.APIVersion == "" || t.APIVersion == v.resource.GVR.GroupVersion().String()
}

// prepareList does not wait: a list is answered only after its scope was found complete.
func (v *programView) prepareList(context.Context, string, *kinds.Filter) (runtime.Object, error) {
	return nil, nil
}

func (v *programView) checkComplete(namespace string, opts *metainternalversion.ListOptions, at uint64) error {
	since, ok := v.complete.HoldsAll(v.resource, namespace, opts)
	if ok && at < since {
		return apierrors.NewResourceExpired(v.resource.GVR.Resource + " were not complete on this gateway at that version: list again")
	}
	if !ok {
		return apierrors.NewResourceExpired("the cloud has stopped sending " + v.resource.GVR.Resource + " to this gateway: list again")
	}
	return nil
}

// waitForObject returns when an object is in the store, is known to be absent, or was returned by the cloud, which it then returns.
func (v *nodeView) waitForObject(ctx context.Context, key wire.Key) (runtime.Object, error) {
	in, err := v.objects.Watch(key.Group, key.Resource, key.Namespace, v.objects.Revision())
	if err != nil {
		return nil, err
	}
	defer in.Stop()
	if _, err := v.objects.Get(key); err == nil {
		v.cloud.absences.Remove(ctx, key)
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, deliveryTimeout)
	defer cancel()
	type answer struct {
		obj runtime.Object
		err error
	}
	answers := make(chan answer, 1) // buffered for the one answer, so that its goroutine never blocks
	delivered := make(chan struct{})
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	helpers.Go(func() {
		for {
			event, err := in.Next(ctx)
			if errors.Is(err, store.ErrGone) || err == nil && event.Entry.Key == key && event.Type != store.Deleted {
				close(delivered)
				return
			}
			if err != nil {
				return
			}
		}
	})
	ask := time.NewTimer(cloudAskDelay)
	defer ask.Stop()
	for {
		select {
		case <-delivered:
			return nil, nil
		case <-ask.C:
			helpers.Go(func() {
				obj, err := v.cloud.fetchObject(ctx, v.resource, key, v.objects)
				answers <- answer{obj, err}
			})
		case a := <-answers:
			if a.err == nil {
				return a.obj, nil
			}
			if apierrors.IsNotFound(a.err) {
				return nil, nil
			}
			// The link is down, or Kubernetes does not grant the object to this node yet: it may still be delivered.
		case <-ctx.Done():
			return nil, apierrors.NewServiceUnavailable(fmt.Sprintf(
				"%s has not been delivered to this gateway, and the cloud could not say whether it exists", key.Human()))
		}
	}
}

// deliveryTimeout ends the wait of a list if the object can be neither found nor proved absent. The client lists again;
// a kubelet does so with backoff, so a longer wait here starts the pod sooner after the delivery.
const deliveryTimeout = 15 * time.Second

// cloudAskDelay is how long a list by name waits for a delivery before it asks the cloud. The object is most likely on
// its way: a pod and the objects that it mounts are published together.
const cloudAskDelay = 250 * time.Millisecond
