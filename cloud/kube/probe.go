package kube

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// NewProbe returns desired.Config.Probe: a request for the resource itself, as discovery documents are assembled from
// several sources and may lack a group for a while.
func NewProbe(objects metadata.Interface) func(context.Context, schema.GroupVersionResource) error {
	return func(ctx context.Context, resource schema.GroupVersionResource) error {
		_, err := objects.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	}
}
