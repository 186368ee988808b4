package jobs

import (
	"crypto/sha256"
	"encoding/hex"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/operations"
)

// The names in the Kubernetes API.
const (
	Group             = "jobs.frond.io"
	Version           = "v1alpha1"
	NodeTaskKind      = "NodeTask"
	NodeTasksResource = "nodetasks"
)

// NodeTask is one step of a job, for one gateway. It has no namespace.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Job",type=string,JSONPath=`.spec.job.name`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeTask struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeTaskSpec `json:"spec"`
	// +optional
	Status NodeTaskStatus `json:"status,omitzero"`
}

// NodeTaskSpec is what the gateway does. It does not change.
//
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="self.nodeName == oldSelf.nodeName && self.job == oldSelf.job",message="node and job cannot be changed"
type NodeTaskSpec struct {
	// NodeName is the gateway's.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeName string `json:"nodeName"`
	// Job is the job that the step is of.
	Job JobReference `json:"job"`
	// ImagePrePull is set in a step of an ImagePrePullJob.
	ImagePrePull *ImagePrePull `json:"imagePrePull,omitempty"`
}

// JobReference names a job.
//
// +kubebuilder:object:generate=true
type JobReference struct {
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid"`
}

// ImagePrePull is what a gateway pulls.
//
// +kubebuilder:object:generate=true
type ImagePrePull struct {
	// Images are the references of the images.
	Images []string `json:"images,omitempty"`
	// CheckItems are checked before.
	CheckItems []operations.CheckItem `json:"checkItems,omitempty"`
	// Secret has the credentials of registries; nil: none are needed.
	Secret *SecretReference `json:"secret,omitempty"`
	// Retries is how often an image that failed is pulled again.
	Retries int32 `json:"retries,omitempty"`
	// TimeoutSeconds limits the work, while the gateway has a link.
	TimeoutSeconds int64 `json:"timeoutSeconds"`
}

// SecretReference names a Secret.
//
// +kubebuilder:object:generate=true
type SecretReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// NodeTaskStatus is what the gateway has reported.
//
// +kubebuilder:object:generate=true
type NodeTaskStatus struct {
	// Phase is Pending while the step waits for another one of the gateway, then InProgress, and at last Successful or Failure. It is empty until the
	// gateway has reported.
	Phase operations.NodePhase `json:"phase,omitempty"`
	// Reason says why it failed, or how far it is.
	Reason string `json:"reason,omitempty"`
	// ActionFlow and ImageStatus are those of the job's status.
	ActionFlow  []operations.ActionStatus `json:"actionFlow,omitempty"`
	ImageStatus []operations.ImageStatus  `json:"imageStatus,omitempty"`
	// Reported is when cloudcore took over the gateway's last report, by cloudcore's clock; the zero time is never.
	//
	// +optional
	Reported metav1.Time `json:"reported,omitzero"`
}

// NodeTaskList is what a list of them is in the Kubernetes API.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
type NodeTaskList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeTask `json:"items"`
}

// GroupVersion returns the group and version of the kind.
func GroupVersion() schema.GroupVersion { return schema.GroupVersion{Group: Group, Version: Version} }

// AddToScheme registers the kind in a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &NodeTask{}, &NodeTaskList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}

// TaskName returns the name of a job's step for a node. There is one name for both, so that a step that two cloudcores create exists once.
func TaskName(job types.UID, node string) string {
	sum := sha256.Sum256([]byte(string(job) + " " + node))
	return "task-" + hex.EncodeToString(sum[:16])
}
