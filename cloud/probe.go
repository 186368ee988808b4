package cloud

import (
	"context"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// newProbe returns desired.Config.Probe: a request for the resource itself, as discovery documents are assembled from
// several sources and may lack a group for a while.
func newProbe(cfg *rest.Config) func(context.Context, schema.GroupVersionResource) error {
	connect := sync.OnceValues(func() (metadata.Interface, error) { return metadata.NewForConfig(cfg) })
	return func(ctx context.Context, resource schema.GroupVersionResource) error {
		objects, err := connect()
		if err != nil {
			return fmt.Errorf("probe: %w", err)
		}
		_, err = objects.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	}
}
