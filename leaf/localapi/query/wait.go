package query

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
)

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
