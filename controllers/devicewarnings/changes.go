package devicewarnings

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/controllers/devicestatus"
)

// modelIndex is of Devices, by the DeviceModel that they name.
const modelIndex = "frond-model"

func byModel(object any) ([]string, error) {
	if o, ok := object.(*unstructured.Unstructured); ok {
		return []string{modelKey(o)}, nil
	}
	return nil, nil
}

// modelKey is the key of the DeviceModel that a Device names.
func modelKey(device *unstructured.Unstructured) string {
	name, _, _ := unstructured.NestedString(device.Object, "spec", "deviceModelRef", "name")
	return types.NamespacedName{Namespace: device.GetNamespace(), Name: name}.String()
}

// followed are the objects of the caches, which must not be changed.
type followed struct{ devices, models, statuses toolscache.Indexer }

// follow returns the objects, and hears of their changes from its first success on. An error is about a kind that is not served or not readable.
func (r *Recorder) follow(ctx context.Context) (found followed, err error) {
	informers := make([]toolscache.SharedIndexInformer, 3)
	for i, of := range []struct {
		kind string
		from cache.Cache
		with toolscache.Indexers
	}{
		{devices.DeviceKind, r.objects, toolscache.Indexers{devicestatus.NodeIndex: devicestatus.ByNode, modelIndex: byModel}},
		{devices.DeviceModelKind, r.objects, nil},
		{devices.DeviceStatusKind, r.statuses, nil},
	} {
		if informers[i], err = devicestatus.Follow(ctx, of.from, of.kind, of.with); err != nil {
			return found, err
		}
	}
	found = followed{informers[0].GetIndexer(), informers[1].GetIndexer(), informers[2].GetIndexer()}
	return found, r.changed.follow(informers[0], informers[1], informers[2])
}

// changes are the keys of Devices that have changed, or whose model or status has. Its methods may be called concurrently.
type changes struct {
	mu   sync.Mutex          // guards keys
	keys map[string]struct{} // namespace/name
	// handlers ends the following; used by Start alone.
	handlers []func() error
}

func newChanges() *changes { return &changes{keys: map[string]struct{}{}} }

// follow hears of all objects, and then of their changes. Only the first call has an effect.
func (c *changes) follow(all, models, statuses toolscache.SharedIndexInformer) error {
	if len(c.handlers) > 0 {
		return nil
	}
	ofModel := func(key string) { c.addIndexed(all.GetIndexer(), modelIndex, key) }
	for informer, add := range map[toolscache.SharedIndexInformer]func(string){all: c.add, statuses: c.add, models: ofModel} {
		changed := func(object any) {
			if key, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
				add(key)
			}
		}
		registered, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
			AddFunc: changed, DeleteFunc: changed, UpdateFunc: func(_, object any) { changed(object) },
		})
		if err != nil {
			c.stop()
			return fmt.Errorf("follow devices: %w", err)
		}
		c.handlers = append(c.handlers, func() error { return informer.RemoveEventHandler(registered) })
	}
	return nil
}

// stop ends the following.
func (c *changes) stop() {
	for _, remove := range c.handlers {
		_ = remove() // the informer has ended
	}
	c.handlers = nil
}

func (c *changes) add(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys[key] = struct{}{}
}

// addIndexed adds the Devices with a value of an index.
func (c *changes) addIndexed(all toolscache.Indexer, index, value string) {
	keys, err := all.IndexKeys(index, value)
	if err != nil {
		return // each caller's index is there
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		c.keys[key] = struct{}{}
	}
}

// take returns the keys and forgets them.
func (c *changes) take() map[string]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.keys
	c.keys = map[string]struct{}{}
	return taken
}
