package message

import (
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// The reasons of notes.
const (
	// ReasonPropertiesUnknown: the DeviceModel has no such property. A mapper would read the missing description and end.
	ReasonPropertiesUnknown = "PropertiesUnknown"
	// ReasonConfigNested: a value of a configData is an object or a list; the mapper gets it as JSON text.
	ReasonConfigNested = "ConfigNested"
	// ReasonConfigInvalid: a configData is no JSON object, or a value is null; it is left out.
	ReasonConfigInvalid = "ConfigInvalid"
	// ReasonDesiredRefused: the desired value is not allowed; the mapper keeps the one before.
	ReasonDesiredRefused = "DesiredRefused"
)

// typeKey is the key of a value's metadata that a mapper copies into each report of the property.
const typeKey = "type"

// Note says what of a Device the message does not have as it is.
type Note struct {
	// Reason is one of the constants.
	Reason string
	// Message names the field.
	Message string
}

// notes collects what is left out.
type notes []Note

func (n *notes) add(reason, format string, args ...any) {
	*n = append(*n, Note{Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// Device returns a Device as a mapper gets it. before are the desired values that the mapper works with, by property: it keeps one where the new
// one is not allowed. The model is that of the Device and not nil.
func Device(device *devices.Device, model *devices.DeviceModel, before map[string]string) (*dmipb.Device, []Note) {
	var n notes
	spec := &dmipb.DeviceSpec{
		Protocol: &dmipb.ProtocolConfig{
			ProtocolName: device.Spec.Protocol.ProtocolName,
			ConfigData:   n.mergedConfig("protocol", model.Spec.ProtocolConfigData, device.Spec.Protocol.ConfigData),
		},
	}
	if device.Spec.DeviceModelRef != nil {
		spec.DeviceModelReference = device.Spec.DeviceModelRef.Name
	}
	described := map[string]*devices.ModelProperty{}
	for i := range model.Spec.Properties {
		described[model.Spec.Properties[i].Name] = &model.Spec.Properties[i]
	}
	twin := devicetwin.NewSpec(device, model)
	for i := range device.Spec.Properties {
		p := &device.Spec.Properties[i]
		if described[p.Name] == nil {
			n.add(ReasonPropertiesUnknown, "DeviceModel %s has no property %q", model.Name, p.Name)
			continue
		}
		spec.Properties = append(spec.Properties, n.property(p, described[p.Name], twin.Properties[i], before))
	}
	for _, m := range device.Spec.Methods {
		spec.Methods = append(spec.Methods, &dmipb.DeviceMethod{Name: m.Name, Description: m.Description, PropertyNames: m.PropertyNames})
	}
	report := device.Status
	if device.Spec.StateReport != nil {
		report = *device.Spec.StateReport
	}
	return &dmipb.Device{
		Name: device.Name, Namespace: device.Namespace, Spec: spec,
		Status: &dmipb.DeviceStatus{ReportToCloud: report.ReportToCloud, ReportCycle: report.ReportCycle},
	}, n
}

// property converts a property. Its desired value and its visitors are never nil: a mapper reads them without a check.
func (n *notes) property(
	p *devices.DeviceProperty, described *devices.ModelProperty, twin devicetwin.PropertySpec, before map[string]string,
) *dmipb.DeviceProperty {
	desired := &dmipb.TwinProperty{Metadata: map[string]string{}}
	if p.Desired != nil {
		desired.Value = p.Desired.Value
		maps.Copy(desired.Metadata, p.Desired.Metadata)
	}
	if twin.Refused != nil {
		desired.Value = before[p.Name]
		n.add(ReasonDesiredRefused, "%v", twin.Refused)
	}
	desired.Metadata[typeKey] = strings.ToLower(described.Type)
	protocol, defaults := p.Visitors.ProtocolName, &devices.ProtocolConfig{}
	if described.Visitors != nil {
		protocol, defaults = described.Visitors.ProtocolName, described.Visitors
	}
	name := "visitors of property " + p.Name
	return &dmipb.DeviceProperty{
		Name: p.Name, Desired: desired,
		Visitors:    &dmipb.VisitorConfig{ProtocolName: protocol, ConfigData: n.mergedConfig(name, defaults.ConfigData, p.Visitors.ConfigData)},
		ReportCycle: p.ReportCycle, CollectCycle: p.CollectCycle, ReportToCloud: p.ReportToCloud,
		PushMethod: pushMethod(n, p.Name, p.PushMethod),
	}
}

// DesiredValues returns the desired values of a message, by property.
func DesiredValues(device *dmipb.Device) map[string]string {
	values := map[string]string{}
	for _, p := range device.GetSpec().GetProperties() {
		values[p.GetName()] = p.GetDesired().GetValue()
	}
	return values
}

// Model returns a DeviceModel as a mapper gets it.
func Model(model *devices.DeviceModel) *dmipb.DeviceModel {
	spec := &dmipb.DeviceModelSpec{}
	for _, p := range model.Spec.Properties {
		spec.Properties = append(spec.Properties, &dmipb.ModelProperty{
			Name: p.Name, Description: p.Description, Type: p.Type, AccessMode: p.AccessMode, Minimum: p.Minimum, Maximum: p.Maximum, Unit: p.Unit,
		})
	}
	return &dmipb.DeviceModel{Name: model.Name, Namespace: model.Namespace, Spec: spec}
}

// ModelOf returns the name of a Device's model. It is empty if the Device names none.
func ModelOf(device *devices.Device) types.NamespacedName {
	if device.Spec.DeviceModelRef == nil || device.Spec.DeviceModelRef.Name == "" {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: device.Namespace, Name: device.Spec.DeviceModelRef.Name}
}
