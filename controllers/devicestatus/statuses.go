package devicestatus

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// listTimeout bounds the wait for the first list of a kind: without the right to list it nothing ever comes.
const listTimeout = 30 * time.Second

// NewStatuses returns a cache of all DeviceStatuses; whole says whether it holds them with the values of the twins, which are most of their size.
func NewStatuses(config *rest.Config, whole bool) (cache.Cache, error) {
	transform := toolscache.TransformFunc(reduce)
	if whole {
		transform = withoutManagers
	}
	statuses, err := cache.New(config, cache.Options{DefaultTransform: transform})
	if err != nil {
		return nil, fmt.Errorf("cache of device statuses: %w", err)
	}
	return statuses, nil
}

// withoutManagers removes what nobody reads.
func withoutManagers(object any) (any, error) {
	if u, ok := object.(*unstructured.Unstructured); ok {
		u.SetManagedFields(nil)
	}
	return object, nil
}

// reduce also removes the values of the twins. client-go may call it twice for one object.
func reduce(object any) (any, error) {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return object, nil
	}
	u.SetManagedFields(nil)
	twins, _, _ := unstructured.NestedSlice(u.Object, "status", "twins") // an error: another writer's, as if there were none
	if len(twins) > 0 {
		// One without values says that there are some.
		return u, unstructured.SetNestedSlice(u.Object, []any{map[string]any{}}, "status", "twins")
	}
	return u, nil
}
