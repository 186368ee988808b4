package jobs

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/jobs"
	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/controllers/jobs/plan"
)

// maxRetries bounds retryTimes; the time limit of a node ends more of them.
const maxRetries = 20

// newTask returns a job's step for a node. Kubernetes deletes it with the job.
func newTask(job *operations.ImagePrePullJob, node string) *jobs.NodeTask {
	t := job.Spec.ImagePrePullTemplate
	pull := &jobs.ImagePrePull{
		Images: t.Images, CheckItems: t.CheckItems, Retries: min(max(t.RetryTimes, 0), maxRetries), TimeoutSeconds: int64(plan.TimeoutOf(t).Seconds()),
	}
	if namespace, name, ok := strings.Cut(t.ImageSecret, "/"); ok {
		pull.Secret = &jobs.SecretReference{Namespace: namespace, Name: name}
	}
	return &jobs.NodeTask{
		ObjectMeta: metav1.ObjectMeta{
			Name: jobs.TaskName(job.UID, node),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: operations.GroupVersion().String(), Kind: operations.ImagePrePullJobKind, Name: job.Name, UID: job.UID,
			}},
		},
		Spec: jobs.NodeTaskSpec{
			NodeName: node, Job: jobs.JobReference{Kind: operations.ImagePrePullJobKind, Name: job.Name, UID: string(job.UID)}, ImagePrePull: pull,
		},
	}
}
