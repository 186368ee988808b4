package devicetwin

import (
	"fmt"
	"maps"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin/reduction"
)

// The reasons for which a desired or reported value is refused. They are values of a metric, too.
const (
	ReasonUnknownProperty = "UnknownProperty"
	ReasonReadOnly        = "ReadOnly"
	ReasonWrongType       = "WrongType"
	ReasonOutOfRange      = "OutOfRange"
	ReasonNotAllowed      = "NotAllowed" // too long, or with control characters
	ReasonRequired        = "Required"   // a deletion of a property that is not optional
	ReasonTooLarge        = "TooLarge"   // the record of the device
)

// maxDesired is the longest desired value, in bytes: as long as a reported one may be.
const maxDesired = 4 << 10

// Refusal says why a value is refused.
type Refusal struct {
	Property string
	// Reason is one of the constants.
	Reason  string
	Message string
}

func (r *Refusal) Error() string { return fmt.Sprintf("property %s: %s", r.Property, r.Message) }

// Spec is what the twin needs of a Device and its DeviceModel.
type Spec struct {
	ID         types.NamespacedName
	UID        types.UID
	Generation int64
	// Description is the label of this name, which apps see in the membership.
	Description string
	// Properties are in the order of the Device.
	Properties []PropertySpec
	// Reduction says which samples of properties are kept, empty for all, and how; ReductionFault why the annotations about it are not followed, "" if they are.
	Reduction      map[string]reduction.Rule
	ReductionFault string
}

// PropertySpec is a property of a Device.
type PropertySpec struct {
	Name string
	// Type is of the DeviceModel: INT, FLOAT, DOUBLE, STRING, BOOLEAN, BYTES, STREAM. Empty: unknown, each value fits.
	Type string
	// Desired is what the device shall have: of its Device, or of a local override. It is nil where there is none; an empty value is none, because
	// typed clients always send one.
	Desired *Desired
	// Override is not nil while Desired is of a local override.
	Override *ActiveOverride
	// Refused says why Desired cannot be applied. It is nil otherwise.
	Refused *Refusal
}

// NewSpec reads a Device. A nil model is one that has not arrived or does not exist: then each value fits.
func NewSpec(device *devices.Device, model *devices.DeviceModel) Spec {
	spec := Spec{
		ID:  types.NamespacedName{Namespace: device.Namespace, Name: device.Name},
		UID: device.UID, Generation: device.Generation, Description: device.Labels["description"],
	}
	for i := range device.Spec.Properties {
		spec.Properties = append(spec.Properties, newPropertySpec(&device.Spec.Properties[i], model))
	}
	kinds := make(map[string]string, len(spec.Properties))
	for _, p := range spec.Properties {
		kinds[p.Name] = p.Type
	}
	rules, err := reduction.Parse(device.Annotations, kinds)
	if err != nil {
		spec.ReductionFault = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	spec.Reduction = rules
	return spec
}

func newPropertySpec(p *devices.DeviceProperty, model *devices.DeviceModel) PropertySpec {
	spec := PropertySpec{Name: p.Name}
	described := modelProperty(model, p.Name)
	if described != nil {
		spec.Type = described.Type
	}
	if p.Desired == nil || p.Desired.Value == "" {
		return spec
	}
	spec.Desired = &Desired{Value: p.Desired.Value, Metadata: maps.Clone(p.Desired.Metadata)}
	refuse := func(reason, format string, args ...any) PropertySpec {
		spec.Refused = &Refusal{Property: p.Name, Reason: reason, Message: fmt.Sprintf(format, args...)}
		return spec
	}
	value := spec.Desired.Value
	switch {
	case len(value) > maxDesired:
		return refuse(ReasonNotAllowed, "the desired value has %d bytes, %d are allowed", len(value), maxDesired)
	case strings.ContainsFunc(value, unicode.IsControl):
		return refuse(ReasonNotAllowed, "the desired value has a control character")
	case model == nil:
		return spec
	case described == nil:
		return refuse(ReasonUnknownProperty, "DeviceModel %s has no such property", model.Name)
	case described.AccessMode == "ReadOnly":
		return refuse(ReasonReadOnly, "DeviceModel %s says that it is read-only", model.Name)
	case !fits(described.Type, value):
		return refuse(ReasonWrongType, "the desired value %q is not of the type %s", clip(value), described.Type)
	case !inRange(described, value):
		return refuse(ReasonOutOfRange, "the desired value %s is not within %q and %q", clip(value), described.Minimum, described.Maximum)
	}
	return spec
}

func modelProperty(model *devices.DeviceModel, name string) *devices.ModelProperty {
	if model == nil {
		return nil
	}
	for i := range model.Spec.Properties {
		if model.Spec.Properties[i].Name == name {
			return &model.Spec.Properties[i]
		}
	}
	return nil
}

// IsFlow reports whether all that an update changes are reported values that may be answered before they are stored.
func (s Spec) IsFlow(u Update) bool {
	for name, p := range u.Properties {
		if !s.Reduction[name].Flow || p.Delete || p.Expected != nil {
			return false
		}
	}
	return len(u.Properties) > 0
}

// reduced is the number of properties of which samples may be left out.
func (s Spec) reduced() (n int) {
	for _, rule := range s.Reduction {
		if rule.Reduces() {
			n++
		}
	}
	return n
}

// property returns a property, or nil.
func (s Spec) property(name string) *PropertySpec {
	for i := range s.Properties {
		if s.Properties[i].Name == name {
			return &s.Properties[i]
		}
	}
	return nil
}

// Fragment returns the desired values of the Device as a record to merge.
func (s Spec) Fragment() Record {
	r := Record{UID: s.UID, Generation: s.Generation, Desired: map[string]Desired{}}
	for _, p := range s.Properties {
		if wanted := p.wanted(); wanted != nil {
			r.Desired[p.Name] = *wanted
		}
	}
	return r
}

// clip shortens a value for an error's text.
func clip(s string) string {
	const longest = 64
	if len(s) > longest {
		return s[:longest] + "…"
	}
	return s
}
