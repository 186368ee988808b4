package groups

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
)

// groupClient reads and writes NodeGroups.
type groupClient struct{ rest rest.Interface }

// get reads a group from the apiserver.
func (c groupClient) get(ctx context.Context, name string) (*apps.NodeGroup, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	o := &apps.NodeGroup{}
	err := c.rest.Get().Resource(apps.NodeGroupsResource).Name(name).Do(ctx).Into(o)
	return o, err
}

// setFinalizers replaces the finalizers of the version that was read.
func (c groupClient) setFinalizers(ctx context.Context, o *apps.NodeGroup, finalizers []string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.UID, "resourceVersion": o.ResourceVersion, "finalizers": finalizers}})
	if err != nil {
		return fmt.Errorf("encode the finalizers: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return c.rest.Patch(types.MergePatchType).Resource(apps.NodeGroupsResource).Name(o.Name).Param("fieldManager", names.ManagerCloudcore).Body(body).Do(ctx).Error()
}

// setStatus replaces the status of the version that was read.
func (c groupClient) setStatus(ctx context.Context, o *apps.NodeGroup, status apps.NodeGroupStatus) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	next := o.DeepCopy()
	next.Status = status
	next.TypeMeta = metav1.TypeMeta{APIVersion: apps.GroupVersion().String(), Kind: apps.NodeGroupKind}
	body, err := json.Marshal(next)
	if err != nil {
		return fmt.Errorf("encode the status: %w", err)
	}
	return c.rest.Put().Resource(apps.NodeGroupsResource).Name(o.Name).SubResource("status").Param("fieldManager", names.ManagerCloudcore).
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
}
