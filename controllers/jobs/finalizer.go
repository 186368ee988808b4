package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/operations"
)

// foreignFinalizer is on jobs that KubeEdge's cloudcore has seen, which is not there any more to remove it.
const foreignFinalizer = "kubeedge.io/imageprepulljob-controller"

// removeFinalizer lets Kubernetes delete a job that is being deleted and that KubeEdge would clean up after.
func (c *Controller) removeFinalizer(ctx context.Context, job *operations.ImagePrePullJob) error {
	if !slices.Contains(job.Finalizers, foreignFinalizer) {
		return nil
	}
	left := slices.DeleteFunc(slices.Clone(job.Finalizers), func(f string) bool { return f == foreignFinalizer })
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": job.ResourceVersion, "finalizers": left}})
	if err != nil {
		return fmt.Errorf("encode: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	err = c.client.Patch(types.MergePatchType).Resource(operations.ImagePrePullJobsResource).Name(job.Name).Param("fieldManager", names.ManagerCloudcore).
		Body(body).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("finalizer of KubeEdge: %w", err)
	}
	return nil
}
