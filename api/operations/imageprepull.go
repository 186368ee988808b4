package operations

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The names in the Kubernetes API.
const (
	Group                    = "operations.kubeedge.io"
	Version                  = "v1alpha2"
	ImagePrePullJobKind      = "ImagePrePullJob"
	ImagePrePullJobsResource = "imageprepulljobs"
)

// JobPhase is how far a job is.
type JobPhase string

// The phases of a job.
const (
	JobInit       JobPhase = "Init"
	JobInProgress JobPhase = "InProgress"
	JobCompleted  JobPhase = "Completed"
	JobFailure    JobPhase = "Failure"
)

// NodePhase is how far a job is at one node.
type NodePhase string

// The phases of a job at a node.
const (
	NodePending    NodePhase = "Pending"
	NodeInProgress NodePhase = "InProgress"
	NodeSuccessful NodePhase = "Successful"
	NodeFailure    NodePhase = "Failure"
	NodeUnknown    NodePhase = "Unknown"
)

// IsFinal reports whether the phase does not change any more.
func (p NodePhase) IsFinal() bool {
	return p == NodeSuccessful || p == NodeFailure || p == NodeUnknown
}

// The actions of an ImagePrePullJob at a node, in their order.
const (
	ActionCheck = "Check"
	ActionPull  = "Pull"
)

// ImagePrePullJob pulls images on gateways before their pods need them. It has no namespace.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:storageversion
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.status.counts.total`
// +kubebuilder:printcolumn:name="Successful",type=integer,JSONPath=`.status.counts.successful`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.counts.failed`
// +kubebuilder:printcolumn:name="Offline",type=integer,JSONPath=`.status.counts.offline`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ImagePrePullJob struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ImagePrePullJobSpec `json:"spec"`
	// Status is written by cloudcore.
	//
	// +optional
	Status ImagePrePullJobStatus `json:"status,omitzero"`
}

// ImagePrePullJobSpec says which images are pulled where. It cannot be changed: a job that has begun would have done two things.
//
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the spec of a job cannot be changed: delete it, or create another job"
type ImagePrePullJobSpec struct {
	// ImagePrePullTemplate has the fields of the job.
	ImagePrePullTemplate ImagePrePullTemplate `json:"imagePrePullTemplate,omitzero"`
}

// ImagePrePullTemplate has the fields of an ImagePrePullJob.
//
// +kubebuilder:object:generate=true
type ImagePrePullTemplate struct {
	// Images are the references of the images, with a tag or a digest.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9][A-Za-z0-9._:/@\[\]+-]*$`
	Images []string `json:"images,omitempty"`
	// NodeNames are the nodes. Either they or LabelSelector must be set.
	//
	// +kubebuilder:validation:MaxItems=2000
	// +kubebuilder:validation:items:MaxLength=253
	NodeNames []string `json:"nodeNames,omitempty"`
	// LabelSelector selects the gateways by their labels, once, when the job begins.
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// CheckItems are checked before: each of cpu, mem and disk must be used by 80 % at most. None: disk.
	//
	// +kubebuilder:validation:MaxItems=3
	CheckItems []CheckItem `json:"checkItems,omitempty"`
	// FailureTolerate is the share of nodes that may fail, as 0.1 or 10%; 0.1 if it is not set. When more have failed, the job stops.
	//
	// +kubebuilder:validation:Pattern=`^(|(0|1|0?\.[0-9]{1,6}|0\.|1\.0{0,6})|([0-9]{1,2}(\.[0-9]{1,4})?|100)%)$`
	FailureTolerate string `json:"failureTolerate,omitempty"`
	// Concurrency is the number of nodes that work at a time; below 1: 1. A node without a link does not count.
	Concurrency int32 `json:"concurrency,omitempty"`
	// TimeoutSeconds limits the work of a node while it has a link; 0 or nothing: 300.
	TimeoutSeconds *uint32 `json:"timeoutSeconds,omitempty"`
	// TimeoutSecondsOnEachNode is the name of TimeoutSeconds in early versions of v1alpha1.
	TimeoutSecondsOnEachNode *uint32 `json:"timeoutSecondsOnEachNode,omitempty"`
	// ImageSecret is the Secret with the credentials of registries: NAMESPACE/NAME. Its type is kubernetes.io/dockerconfigjson.
	//
	// +kubebuilder:validation:Pattern=`^(|[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)$`
	ImageSecret string `json:"imageSecrets,omitempty"`
	// RetryTimes is how often an image that failed is pulled again.
	RetryTimes int32 `json:"retryTimes,omitempty"`
}

// CheckItem is something that a gateway must have left before a job begins.
//
// +kubebuilder:validation:Enum=cpu;mem;disk
type CheckItem string

// The check items.
const (
	CheckCPU    CheckItem = "cpu"
	CheckMemory CheckItem = "mem"
	CheckDisk   CheckItem = "disk"
)

// ImagePrePullJobStatus is how far a job is. Phase, Reason and NodeStatus are KubeEdge's, the rest is Frond's.
//
// +kubebuilder:object:generate=true
// +kubebuilder:pruning:PreserveUnknownFields
type ImagePrePullJobStatus struct {
	// Phase is Init, InProgress, Completed or Failure.
	//
	// +optional
	Phase JobPhase `json:"phase"`
	// Reason says why a job failed or has stopped.
	Reason string `json:"reason,omitempty"`
	// NodeStatus has one entry for each node, by name.
	NodeStatus []ImagePrePullNodeStatus `json:"nodeStatus,omitempty"`
	// State is what clients of v1alpha1 read: prepulling, successful or failed.
	State string `json:"state,omitempty"`
	// Counts sums up NodeStatus.
	//
	// +optional
	Counts Counts `json:"counts,omitzero"`
	// Resumed is the last value of the annotation frond.io/resume that was followed.
	Resumed string `json:"resumed,omitempty"`
	// ForgivenFailures is the number of nodes that had failed when the job was resumed; they stop it no more.
	ForgivenFailures int32 `json:"forgivenFailures,omitempty"`
}

// Counts are numbers of nodes by their phase.
//
// +kubebuilder:object:generate=true
type Counts struct {
	Total      int32 `json:"total"`
	Pending    int32 `json:"pending"`
	InProgress int32 `json:"inProgress"`
	Successful int32 `json:"successful"`
	// Failed are those with the phase Failure or Unknown.
	Failed int32 `json:"failed"`
	// Offline are those of Pending and InProgress that have no link.
	Offline int32 `json:"offline"`
}

// ImagePrePullNodeStatus is how far a job is at one node.
//
// +kubebuilder:object:generate=true
type ImagePrePullNodeStatus struct {
	// NodeName is the node's.
	NodeName string `json:"nodeName,omitempty"`
	// Phase is Pending, InProgress, Successful, Failure or Unknown.
	Phase NodePhase `json:"phase,omitempty"`
	// Reason says why a node waits or has failed, and how far it is.
	Reason string `json:"reason,omitempty"`
	// ActionFlow are the actions that were done: Check, Pull.
	ActionFlow []ActionStatus `json:"actionFlow,omitempty"`
	// ImageStatus has one entry for each image. In jobs of many nodes and images it is left out.
	ImageStatus []ImageStatus `json:"imageStatus,omitempty"`
}

// ActionStatus is the outcome of one action.
//
// +kubebuilder:object:generate=true
type ActionStatus struct {
	Action string                 `json:"action,omitempty"`
	Status metav1.ConditionStatus `json:"status,omitempty"`
	Reason string                 `json:"reason,omitempty"`
	// Time is when the action ended, in RFC 3339 and UTC.
	Time string `json:"time,omitempty"`
}

// ImageStatus is the outcome of one image.
//
// +kubebuilder:object:generate=true
type ImageStatus struct {
	Image  string                 `json:"image,omitempty"`
	Status metav1.ConditionStatus `json:"status,omitempty"`
	Reason string                 `json:"reason,omitempty"`
}

// ImagePrePullJobList is what a list of them is in the Kubernetes API.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
type ImagePrePullJobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ImagePrePullJob `json:"items"`
}
