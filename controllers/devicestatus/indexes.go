package devicestatus

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/controllers"
)

// The indexes of the informers, so that a scan reads no more than the devices of gateways that are away and the statuses that are marked.
const (
	// NodeIndex is of Devices, by ByNode.
	NodeIndex   = "frond-node"
	markedIndex = "frond-marked"
	// markedValue is the one value of markedIndex.
	markedValue = "true"
)

// ByNode indexes Devices by their node.
func ByNode(object any) ([]string, error) {
	o, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil, nil
	}
	if node := deviceOf(o).Node; node != "" {
		return []string{node}, nil
	}
	return nil, nil
}

// byMarked indexes the DeviceStatuses that are marked.
func byMarked(object any) ([]string, error) {
	if o, ok := object.(*unstructured.Unstructured); ok && isMarked(o) {
		return []string{markedValue}, nil
	}
	return nil, nil
}

// indexes are the informers' objects. They must not be changed.
type indexes struct{ devices, statuses toolscache.Indexer }

// index returns the objects of the caches. An error is about a kind that is not served, or not read within some time.
func (a *Absence) index(ctx context.Context) (found indexes, err error) {
	all, err := Follow(ctx, a.objects, devices.DeviceKind, toolscache.Indexers{NodeIndex: ByNode})
	if err != nil {
		return found, err
	}
	statuses, err := Follow(ctx, a.statuses, devices.DeviceStatusKind, toolscache.Indexers{markedIndex: byMarked})
	if err != nil {
		return found, err
	}
	return indexes{all.GetIndexer(), statuses.GetIndexer()}, nil
}

// Follow returns the informer of a kind in a cache, synced and with indexes. It gives up after some time, so that a right that is missing is seen.
func Follow(ctx context.Context, objects cache.Cache, kind string, with toolscache.Indexers) (toolscache.SharedIndexInformer, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	of := &unstructured.Unstructured{}
	of.SetGroupVersionKind(gvk(kind))
	informer, err := objects.GetInformer(ctx, of)
	if err != nil {
		return nil, fmt.Errorf("follow %s objects: %w", kind, err)
	}
	shared, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("informer of %s is a %T: the cache must not be split by namespaces", kind, informer)
	}
	if err := controllers.AddIndexers(shared, with); err != nil {
		return nil, fmt.Errorf("%s objects: %w", kind, err)
	}
	return shared, nil
}

// Get returns an object of an index, or nil.
func Get(objects toolscache.Store, key string) *unstructured.Unstructured {
	found, exists, err := objects.GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	o, _ := found.(*unstructured.Unstructured)
	return o
}
