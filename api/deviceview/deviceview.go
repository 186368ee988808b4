// Package deviceview is a device as Frond's commands show it: its Device joined with what its gateway knows of it.
package deviceview

import (
	"encoding/json"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
)

// Device is what is known of a device. Its JSON is the output of the commands.
type Device struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Model     string `json:"model,omitempty"`
	Node      string `json:"node,omitempty"`
	// HeldBy is the node whose gateway may still drive the device after it has moved to Node, which is not given the Device until then.
	HeldBy string `json:"heldBy,omitempty"`
	// Generation is the Device's.
	Generation int64 `json:"generation"`
	// State and LastOnline are as the DeviceStatus has them; State is "" if nothing was reported.
	State      string `json:"state,omitempty"`
	LastOnline string `json:"lastOnline,omitempty"`
	// AwaySince is when the gateway was last heard, while it is away. Nil: it is there, or nothing was reported.
	AwaySince  *metav1.Time `json:"awaySince,omitempty"`
	Properties []Property   `json:"properties"`
	// Conditions are Delivered, Accepted, Applied and LocalOverride, with the generation that they are about.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	Created    time.Time          `json:"created,omitzero"`
}

// Property is one property of a device.
type Property struct {
	Name string `json:"name"`
	// Desired and Reported are nil where there is no value; ReportedAt is the device's time in milliseconds.
	Desired    *string `json:"desired,omitempty"`
	Reported   *string `json:"reported,omitempty"`
	ReportedAt string  `json:"reportedAt,omitempty"`
	// Override is not nil while a value that was set on the gateway is driven instead of Desired.
	Override *Override `json:"override,omitempty"`
}

// Override is a desired value that was set on the gateway, and wins over the Device's until it ends.
type Override struct {
	Value string `json:"value"`
	// By is who set it, as they say.
	By    string    `json:"by"`
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// New joins a Device with its DeviceStatus, which may be nil.
func New(device *devices.Device, reported *devices.DeviceStatus) Device {
	d := Device{
		Namespace: device.Namespace, Name: device.Name, Node: device.Spec.NodeName, Generation: device.Generation, Created: device.CreationTimestamp.Time,
		Properties: []Property{},
	}
	if holder := device.Annotations[names.AnnotationDeviceHolder]; holder != d.Node {
		d.HeldBy = holder
	}
	if device.Spec.DeviceModelRef != nil {
		d.Model = device.Spec.DeviceModelRef.Name
	}
	twins, overrides := map[string]devices.Twin{}, map[string]Override{}
	if reported != nil {
		d.State, d.LastOnline = reported.Status.State, reported.Status.LastOnlineTime
		known := readExtension(reported)
		d.Conditions, overrides = known.Conditions, known.Overrides
		if known.State != nil {
			d.AwaySince = &known.State.Since
		}
		for _, twin := range reported.Status.Twins {
			twins[twin.PropertyName] = twin
		}
	}
	for _, p := range device.Spec.Properties {
		property := Property{Name: p.Name}
		if p.Desired != nil && p.Desired.Value != "" {
			property.Desired = &p.Desired.Value
		}
		if twin := twins[p.Name]; twin.Reported != nil {
			property.Reported, property.ReportedAt = &twin.Reported.Value, twin.Reported.Metadata["timestamp"]
		}
		if override, ok := overrides[p.Name]; ok {
			property.Override = &override
		}
		d.Properties = append(d.Properties, property)
	}
	return d
}

// extension is Frond's part of status.extensions.
type extension struct {
	Conditions []metav1.Condition `json:"conditions"`
	// Overrides are by property.
	Overrides map[string]Override `json:"overrides"`
	// State is there while the gateway is away.
	State *struct {
		Since metav1.Time `json:"since"`
	} `json:"state"`
}

// readExtension returns nothing if another writer has made it unreadable.
func readExtension(status *devices.DeviceStatus) extension {
	var extensions struct {
		Frond extension `json:"frond"`
	}
	if status.Status.Extensions == nil || json.Unmarshal(status.Status.Extensions.Raw, &extensions) != nil {
		return extension{}
	}
	return extensions.Frond
}

// Condition returns a condition of the present generation of the Device. It is nil if none is known: one of an older generation says nothing of the
// values that are desired now.
func (d *Device) Condition(kind string) *metav1.Condition {
	c := meta.FindStatusCondition(d.Conditions, kind)
	if c == nil || c.ObservedGeneration < d.Generation {
		return nil
	}
	return c
}
