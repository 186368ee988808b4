package devicetwin

import (
	"fmt"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/deviceview"
)

// ReasonSetLocally is the reason of the condition LocalOverride.
const ReasonSetLocally = "SetOnTheGateway"

// Override is a desired value that was set on the gateway. While it lasts, it is driven instead of the Device's.
type Override = deviceview.Override

// ActiveOverride is an override that is driven.
type ActiveOverride struct {
	Override
	// Device is the desired value of the Device, which is driven again at the end; nil if there is none. Refused is why that may not be.
	Device  *Desired
	Refused *Refusal
}

// wanted returns the desired value of the Device.
func (p PropertySpec) wanted() *Desired {
	if p.Override != nil {
		return p.Override.Device
	}
	return p.Desired
}

// refusal returns why the desired value of the Device is refused, nil if it is not.
func (p PropertySpec) refusal() *Refusal {
	if p.Override != nil {
		return p.Override.Refused
	}
	return p.Refused
}

// Drive returns a Device with overrides, by property, in place of its desired values, and the Device itself if there are none. An override of a property
// that the Device does not have is ignored.
func Drive(device *devices.Device, overrides map[string]Override) *devices.Device {
	if len(overrides) == 0 {
		return device
	}
	driven := device.DeepCopy()
	for i := range driven.Spec.Properties {
		p := &driven.Spec.Properties[i]
		override, ok := overrides[p.Name]
		if !ok {
			continue
		}
		if p.Desired == nil {
			p.Desired = &devices.TwinProperty{}
		}
		p.Desired.Value = override.Value
	}
	return driven
}

// NewDrivenSpec returns the Spec of a Device while overrides, by property, are in force.
func NewDrivenSpec(device *devices.Device, model *devices.DeviceModel, overrides map[string]Override) Spec {
	spec := NewSpec(Drive(device, overrides), model)
	if len(overrides) == 0 {
		return spec
	}
	own := NewSpec(device, model)
	for i := range spec.Properties {
		p := &spec.Properties[i]
		override, ok := overrides[p.Name]
		if !ok {
			continue
		}
		p.Override = &ActiveOverride{Override: override, Refused: own.Properties[i].Refused}
		if wanted := device.Spec.Properties[i].Desired; wanted != nil && wanted.Value != "" {
			p.Override.Device = &Desired{Value: wanted.Value, Metadata: maps.Clone(wanted.Metadata)}
		}
	}
	return spec
}

// CheckValue returns the *Refusal of a value that a property may not be set to, as if the Device desired it. A nil model allows each value.
func CheckValue(device *devices.Device, model *devices.DeviceModel, property, value string) error {
	if !slices.ContainsFunc(device.Spec.Properties, func(p devices.DeviceProperty) bool { return p.Name == property }) {
		return &Refusal{Property: property, Reason: ReasonUnknownProperty, Message: "the Device has no such property"}
	}
	if value == "" {
		return &Refusal{Property: property, Reason: ReasonNotAllowed, Message: "an empty value is none: it cannot be set"}
	}
	spec := NewSpec(Drive(device, map[string]Override{property: {Value: value}}), model)
	if refused := spec.property(property).Refused; refused != nil {
		return refused
	}
	return nil
}

// overridden returns the condition LocalOverride, and false if there are no overrides. Its message does not change while they last.
func overridden(spec Spec) (metav1.Condition, bool) {
	var list []string
	for _, p := range spec.Properties {
		if p.Override != nil {
			text := fmt.Sprintf("%s=%s until %s by %s", p.Name, clip(p.Override.Value), p.Override.Until.UTC().Format(time.RFC3339), p.Override.By)
			if p.Refused != nil {
				text += " (refused: " + p.Refused.Error() + ")"
			}
			list = append(list, text)
		}
	}
	return metav1.Condition{
		Type: devices.ConditionLocalOverride, Status: metav1.ConditionTrue, Reason: ReasonSetLocally, Message: "set on the gateway: " + join(list),
	}, len(list) > 0
}

// overridesOf returns the overrides of a Spec, by property.
func overridesOf(spec Spec) map[string]Override {
	all := map[string]Override{}
	for _, p := range spec.Properties {
		if p.Override != nil {
			all[p.Name] = p.Override.Override
		}
	}
	return all
}
