package devicestatus

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/devices"
)

// The indexes of the informers, so that a scan reads no more than the devices of gateways that are away and the statuses that are marked.
const (
	nodeIndex   = "frond-node"
	markedIndex = "frond-marked"
	// markedValue is the one value of markedIndex.
	markedValue = "true"
)

// byNode indexes Devices by their node.
func byNode(object any) ([]string, error) {
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
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	if found.devices, err = indexerOf(ctx, a.objects, devices.DeviceKind, nodeIndex, byNode); err != nil {
		return found, err
	}
	found.statuses, err = indexerOf(ctx, a.statuses, devices.DeviceStatusKind, markedIndex, byMarked)
	return found, err
}

// indexerOf returns the objects of a kind in a cache, with an index.
func indexerOf(ctx context.Context, objects cache.Cache, kind, name string, by toolscache.IndexFunc) (toolscache.Indexer, error) {
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
	if _, indexed := shared.GetIndexer().GetIndexers()[name]; !indexed {
		if err := shared.AddIndexers(toolscache.Indexers{name: by}); err != nil {
			return nil, fmt.Errorf("index %s objects: %w", kind, err)
		}
	}
	return shared.GetIndexer(), nil
}

// get returns an object of an index, or nil.
func get(objects toolscache.Store, key string) *unstructured.Unstructured {
	found, exists, err := objects.GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	o, _ := found.(*unstructured.Unstructured)
	return o
}
