package devices

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// DeviceStatus is what is known of a device, under the name of its Device, which owns it. Clients write the object itself: it has no status
// subresource.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=devicestatuses,singular=devicestatus
// +kubebuilder:storageversion
// +kubebuilder:printcolumn:name=State,type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name=Last,type=date,JSONPath=`.status.lastOnlineTime`
// +kubebuilder:printcolumn:name=Age,type=date,JSONPath=`.metadata.creationTimestamp`
type DeviceStatus struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   DeviceStatusSpec   `json:"spec,omitzero"`
	Status DeviceStatusReport `json:"status,omitzero"`
}

// DeviceStatusSpec has no fields.
//
// +kubebuilder:object:generate=true
type DeviceStatusSpec struct{}

// DeviceStatusReport is what a gateway has reported.
//
// +kubebuilder:object:generate=true
type DeviceStatusReport struct {
	Twins []Twin `json:"twins,omitempty"`
	// State is a word of the mapper's: ok, online, offline, disconnected, unhealthy or unknown.
	State string `json:"state,omitempty"`
	// LastOnlineTime is a time of RFC 3339 in UTC.
	LastOnlineTime string `json:"lastOnlineTime,omitempty"`
	// Extensions is a JSON object for others to fill.
	//
	// +kubebuilder:pruning:PreserveUnknownFields
	Extensions *runtime.RawExtension `json:"extensions,omitempty"`
}

// Twin has both sides of one property.
//
// +kubebuilder:object:generate=true
type Twin struct {
	PropertyName string        `json:"propertyName,omitempty"`
	Reported     *TwinProperty `json:"reported,omitempty"`
	// ObservedDesired is the desired value that the mapper works with.
	ObservedDesired *TwinProperty `json:"observedDesired,omitempty"`
}

// DeviceStatusList is what a list of them is in the Kubernetes API.
//
// +kubebuilder:object:generate=true
// +kubebuilder:object:root=true
type DeviceStatusList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DeviceStatus `json:"items"`
}

// The conditions of a device, with the generation of the Device that they are about. They stand in status.extensions.frond.conditions of a
// DeviceStatus: KubeEdge's kind has no place of its own for them.
const (
	// ConditionAccepted: each desired value is one that the model allows, and the app or mapper has said that it works with it or has it. Unknown: it
	// has not said so, which apps for MQTT need not do.
	ConditionAccepted = "Accepted"
	// ConditionDelivered: the mapper has the Device. Apps for MQTT ask for it themselves, and have no such condition.
	ConditionDelivered = "Delivered"
	// ConditionApplied: the device reports each desired value.
	ConditionApplied = "Applied"
	// ConditionLocalOverride: staff at the gateway have set desired values there, which win over the Device's until they end. The condition is absent
	// otherwise. status.extensions.frond.overrides has them.
	ConditionLocalOverride = "LocalOverride"
	// ReasonMapperRefused is a reason of Delivered: the mapper answers the Device with an error. It is tried again.
	ReasonMapperRefused = "MapperRefused"
	// ReasonHeldByOtherGateway is a reason of Delivered, by cloudcore: the Device has moved, and its old gateway, which is away, still holds it.
	ReasonHeldByOtherGateway = "HeldByOtherGateway"
	// ConditionReportsTaken: False after the gateway has refused a message, until it takes one with the property for which it did. A device none of
	// whose messages was refused has no such condition.
	ConditionReportsTaken = "ReportsTaken"
	// ConditionReduction: the annotations about telemetry are followed. A Device that never had one has no such condition.
	ConditionReduction = "Reduction"
)
