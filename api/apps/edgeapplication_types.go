package apps

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The names in the Kubernetes API.
const (
	EdgeApplicationKind      = "EdgeApplication"
	EdgeApplicationsResource = "edgeapplications"
)

// EdgeApplication is a set of objects, some of which are made once for each group of Nodes, with differences for each.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=eapp
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="READY",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="REASON",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="ROLLOUT",type=string,JSONPath=`.status.rollout.phase`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type EdgeApplication struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   EdgeApplicationSpec   `json:"spec,omitzero"`
	Status EdgeApplicationStatus `json:"status,omitzero"`
}

// EdgeApplicationSpec is what is made, and for whom.
//
// +kubebuilder:object:generate=true
type EdgeApplicationSpec struct {
	// WorkloadTemplate holds the objects.
	WorkloadTemplate ResourceTemplate `json:"workloadTemplate,omitempty,omitzero"`
	// WorkloadScope says for which groups of Nodes, with which differences.
	WorkloadScope WorkloadScope `json:"workloadScope"`
}

// ResourceTemplate is a list of objects.
//
// +kubebuilder:object:generate=true
type ResourceTemplate struct {
	// Manifests are the objects.
	//
	// +optional
	Manifests []Manifest `json:"manifests,omitempty"`
}

// Manifest is an object of any kind.
//
// +kubebuilder:object:generate=true
// +kubebuilder:pruning:PreserveUnknownFields
type Manifest struct {
	runtime.RawExtension `json:",inline"`
}

// WorkloadScope names the targets.
//
// +kubebuilder:object:generate=true
type WorkloadScope struct {
	// TargetNodeGroups are NodeGroups by name.
	//
	// +optional
	TargetNodeGroups []TargetNodeGroup `json:"targetNodeGroups,omitempty"`
	// TargetNodeLabels are sets of Nodes by their labels.
	//
	// +optional
	TargetNodeLabels []TargetNodeLabel `json:"targetNodeLabels,omitempty"`
}

// TargetNodeGroup is a NodeGroup and its differences.
//
// +kubebuilder:object:generate=true
type TargetNodeGroup struct {
	// Name is the NodeGroup's.
	Name string `json:"name"`
	// Overriders are the differences.
	Overriders Overriders `json:"overriders,omitempty,omitzero"`
}

// TargetNodeLabel is a set of Nodes and its differences.
//
// +kubebuilder:object:generate=true
type TargetNodeLabel struct {
	// LabelSelector selects the Nodes; only matchLabels count.
	LabelSelector metav1.LabelSelector `json:"labelSelector,omitempty,omitzero"`
	// Overriders are the differences.
	Overriders Overriders `json:"overriders,omitempty,omitzero"`
}

// Overriders change an object for one target, in the order replicas, images, commands, args, env, resources.
//
// +kubebuilder:object:generate=true
type Overriders struct {
	// Replicas replaces the number of replicas.
	//
	// +optional
	Replicas *int `json:"replicas,omitempty"`
	// ImageOverriders change images.
	//
	// +optional
	ImageOverriders []ImageOverrider `json:"imageOverriders,omitempty"`
	// EnvOverriders change environment variables.
	//
	// +optional
	EnvOverriders []EnvOverrider `json:"envOverriders,omitempty"`
	// CommandOverriders change commands.
	//
	// +optional
	CommandOverriders []CommandArgsOverrider `json:"commandOverriders,omitempty"`
	// ArgsOverriders change arguments.
	//
	// +optional
	ArgsOverriders []CommandArgsOverrider `json:"argsOverriders,omitempty"`
	// ResourcesOverriders change requests and limits.
	//
	// +optional
	ResourcesOverriders []ResourcesOverrider `json:"resourcesOverriders,omitempty"`
}

// ImageOverrider changes one component of images.
//
// +kubebuilder:object:generate=true
type ImageOverrider struct {
	// Predicate names one image; without it the images of all containers, but not of init containers, are changed.
	//
	// +optional
	Predicate *ImagePredicate `json:"predicate,omitempty"`
	// Component is Registry, Repository or Tag, which is a tag or a digest.
	//
	// +kubebuilder:validation:Enum=Registry;Repository;Tag
	Component string `json:"component"`
	// Operator adds to the component, removes or replaces it.
	//
	// +kubebuilder:validation:Enum=add;remove;replace
	Operator string `json:"operator"`
	// Value is not needed to remove.
	//
	// +optional
	Value string `json:"value,omitempty"`
}

// ImagePredicate names one image.
//
// +kubebuilder:object:generate=true
type ImagePredicate struct {
	// Path is a JSON pointer to the image in the object, such as /spec/template/spec/initContainers/0/image.
	Path string `json:"path"`
}

// EnvOverrider changes environment variables of a container.
//
// +kubebuilder:object:generate=true
type EnvOverrider struct {
	// ContainerName is the container's.
	ContainerName string `json:"containerName"`
	// Operator adds variables, removes those of the names, or replaces those of the names and adds missing ones.
	//
	// +kubebuilder:validation:Enum=add;remove;replace
	Operator string `json:"operator"`
	// Value are the variables.
	//
	// +optional
	Value []corev1.EnvVar `json:"value,omitempty"`
}

// CommandArgsOverrider changes the command or the arguments of a container.
//
// +kubebuilder:object:generate=true
type CommandArgsOverrider struct {
	// ContainerName is the container's.
	ContainerName string `json:"containerName"`
	// Operator adds values at the end, or removes equal ones.
	//
	// +kubebuilder:validation:Enum=add;remove
	Operator string `json:"operator"`
	// Value are the words.
	//
	// +optional
	Value []string `json:"value,omitempty"`
}

// ResourcesOverrider changes requests and limits of a container.
//
// +kubebuilder:object:generate=true
type ResourcesOverrider struct {
	// ContainerName is the container's.
	ContainerName string `json:"containerName"`
	// Value has the quantities to set; others stay.
	Value corev1.ResourceRequirements `json:"value"`
}

// EdgeApplicationStatus is how far the application is.
//
// +kubebuilder:object:generate=true
type EdgeApplicationStatus struct {
	// WorkloadStatus has one entry for each object, in the order of the manifests and targets.
	//
	// +optional
	WorkloadStatus []ManifestStatus `json:"workloadStatus,omitempty"`
	// Conditions are Valid, Applied, Drifted and Ready.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the version of the specification that the conditions are about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Targets are the counts of each target.
	//
	// +optional
	Targets []TargetStatus `json:"targets,omitempty"`
	// Rollout is the state of a rollout.
	//
	// +optional
	Rollout *RolloutStatus `json:"rollout,omitempty"`
}

// TargetStatus counts the pods of a target.
//
// +kubebuilder:object:generate=true
type TargetStatus struct {
	// Name is the NodeGroup's, or that of the label target.
	Name string `json:"name"`
	// Revision is what the target has.
	Revision string `json:"revision,omitempty"`
	// Wanted is the number of pods that the application asks for.
	Wanted int32 `json:"wanted"`
	// Ready is how many of them are ready with the present template.
	Ready int32 `json:"ready"`
	// Offline is how many of those that are not ready are on Nodes without a link.
	Offline int32 `json:"offline,omitempty"`
}

// The conditions of an object, as KubeEdge has them.
const (
	ManifestProcessing = "Processing"
	ManifestAvailable  = "Available"
)

// ManifestStatus is how far one object is.
//
// +kubebuilder:object:generate=true
type ManifestStatus struct {
	// Identifier is the object's.
	Identifier ResourceIdentifier `json:"identifier"`
	// Conditions is Processing or Available.
	//
	// +kubebuilder:validation:Enum=Processing;Available
	Conditions string `json:"conditions,omitempty"`
}

// ResourceIdentifier identifies an object that an application made.
//
// +kubebuilder:object:generate=true
type ResourceIdentifier struct {
	// Ordinal is the position of its manifest, counted from 0.
	Ordinal int `json:"ordinal"`
	// Group, Version, Kind and Resource are those of the Kubernetes API.
	Group    string `json:"group,omitempty"`
	Version  string `json:"version,omitempty"`
	Kind     string `json:"kind,omitempty"`
	Resource string `json:"resource,omitempty"`
	// Namespace and Name are the object's.
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// EdgeApplicationList is what a list of them is in the Kubernetes API.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
type EdgeApplicationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []EdgeApplication `json:"items"`
}
