package rules

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The names in the Kubernetes API.
const (
	Group                 = "rules.kubeedge.io"
	Version               = "v1"
	RuleKind              = "Rule"
	RulesResource         = "rules"
	RuleEndpointsResource = "ruleendpoints"
)

// The types of a RuleEndpoint.
const (
	TypeREST       = "rest"
	TypeEventBus   = "eventbus"
	TypeServiceBus = "servicebus"
)

// The keys of sourceResource and targetResource.
const (
	// KeyPath is a path of the REST entry or of a service.
	KeyPath = "path"
	// KeyTopic is an MQTT topic, and KeyNodeName the gateway whose apps publish on it.
	KeyTopic    = "topic"
	KeyNodeName = "node_name"
	// KeyResource is the URL that messages are sent to.
	KeyResource = "resource"
	// KeyTargetURL is what apps call at the ServiceBus.
	KeyTargetURL = "target_url"
)

// KeyServicePort is the key of a ServiceBus' port in a RuleEndpoint's properties.
const KeyServicePort = "service_port"

// ConditionReady of a Rule says whether messages are passed on, and why not.
const ConditionReady = "Ready"

// MaxErrors is the number of errors that a Rule's status keeps.
const MaxErrors = 5

// RuleEndpoint is one end of rules: what a REST client calls or is called at, MQTT apps, or services of gateways.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=re
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.ruleEndpointType`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RuleEndpoint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec RuleEndpointSpec `json:"spec"`
}

// RuleEndpointSpec says what kind of end it is.
//
// +kubebuilder:object:generate=true
// +kubebuilder:validation:XValidation:rule="self.ruleEndpointType != 'servicebus' || (has(self.properties) && 'service_port' in self.properties && self.properties['service_port'].matches('^[1-9][0-9]{0,4}$') && int(self.properties['service_port']) <= 65535)",message="an endpoint of the type servicebus needs properties.service_port, \"1\" to \"65535\""
type RuleEndpointSpec struct {
	// RuleEndpointType is rest, eventbus or servicebus.
	//
	// +kubebuilder:validation:Enum=rest;eventbus;servicebus
	RuleEndpointType string `json:"ruleEndpointType"`
	// Properties of an endpoint of the type servicebus have its service_port.
	//
	// +kubebuilder:validation:MaxProperties=64
	Properties map[string]string `json:"properties,omitempty"`
}

// RuleEndpointList is what a list of them is in the Kubernetes API.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
type RuleEndpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RuleEndpoint `json:"items"`
}

// Rule passes messages from a source to a target; both are RuleEndpoints of its namespace.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Source",type=string,JSONPath=`.spec.source`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.target`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Delivered",type=integer,JSONPath=`.status.successMessages`
// +kubebuilder:printcolumn:name="Failed",type=integer,JSONPath=`.status.failMessages`
// +kubebuilder:printcolumn:name="Waiting",type=integer,JSONPath=`.status.waitingMessages`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Rule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   RuleSpec   `json:"spec"`
	Status RuleStatus `json:"status,omitzero"`
}

// RuleSpec names the ends, and what of each is meant.
//
// +kubebuilder:object:generate=true
type RuleSpec struct {
	// Source is the name of the RuleEndpoint that messages come from.
	Source string `json:"source"`
	// SourceResource is of an eventbus topic and node_name, of a rest endpoint path, of a servicebus target_url and node_name.
	SourceResource map[string]string `json:"sourceResource"`
	// Target is the name of the RuleEndpoint that messages go to.
	Target string `json:"target"`
	// TargetResource is of a rest endpoint resource, its URL; of an eventbus topic; of a servicebus path.
	TargetResource map[string]string `json:"targetResource"`
}

// RuleStatus is written by cloudcore, at most once in ten seconds. The first three fields are KubeEdge's.
//
// +kubebuilder:object:generate=true
type RuleStatus struct {
	// SuccessMessages counts the messages that the target has accepted.
	//
	// +optional
	SuccessMessages int64 `json:"successMessages"`
	// FailMessages counts the messages that were given up; each is a dead letter.
	//
	// +optional
	FailMessages int64 `json:"failMessages"`
	// Errors are the last failed attempts, the newest last, each with its time.
	Errors []string `json:"errors,omitempty"`
	// WaitingMessages is the number of messages that the target has not accepted yet.
	//
	// +optional
	WaitingMessages int64 `json:"waitingMessages"`
	// OldestWaiting is when the hub stored the oldest of them.
	OldestWaiting *metav1.Time `json:"oldestWaiting,omitempty"`
	// ObservedGeneration is the generation of the spec that the status is about.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions are the rule's, each type once.
	//
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RuleList is what a list of them is in the Kubernetes API.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
type RuleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Rule `json:"items"`
}
