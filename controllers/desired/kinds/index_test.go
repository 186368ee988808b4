package kinds_test

import (
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired/kinds"
)

// Engines add the indexes of a kind while other controllers add theirs to the same informer: each is there once, and nobody reads the list of indexes
// while another one writes it. The race detector sees that.
func TestSpec_AddIndexesWhileOthersDo(t *testing.T) {
	for range 100 {
		informer := toolscache.NewSharedIndexInformer(&toolscache.ListWatch{}, &unstructured.Unstructured{}, 0, toolscache.Indexers{})
		spec := kinds.OptionalByID()[kinds.ID{Group: devices.Group, Resource: devices.DevicesResource}].Spec(devices.Version)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				if err := spec.AddIndexes(informer); err != nil {
					t.Error(err)
				}
			})
			all.Go(func() {
				if err := controllers.AddIndexers(informer, toolscache.Indexers{"another": func(any) ([]string, error) { return nil, nil }}); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		for _, index := range []string{"another", kinds.NodeIndex} {
			if _, err := informer.GetIndexer().IndexKeys(index, ""); err != nil {
				t.Error(err)
			}
		}
	}
}
