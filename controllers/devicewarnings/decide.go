package devicewarnings

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/deviceclaim"
)

const (
	// modelHold, moveHold, mapperHold and servedHold are how long a state lasts before somebody should look: tools create Devices in steps, a mapper restarts,
	// a gateway that is moved from confirms with its next heartbeat, the first image of a mapper is pulled.
	modelHold  = time.Minute
	moveHold   = time.Minute
	mapperHold = 5 * time.Minute
	servedHold = 10 * time.Minute
	// maxMessage bounds the text of an Event, of which Kubernetes takes 1,024 bytes.
	maxMessage = 768
	// maxConditions bounds what is read of a status that another gateway may have filled.
	maxConditions = 32
)

// Input is what is known of one device.
type Input struct {
	Device *unstructured.Unstructured
	// Status is nil if there is none of this Device.
	Status *unstructured.Unstructured
	// ModelExists: a DeviceModel of the name that the Device gives exists.
	ModelExists bool
	// Connected: the gateway is there, so that its conditions are present ones.
	Connected bool
}

// Warning is one thing to look at.
type Warning struct {
	// Reason is of the Event.
	Reason, Message string
	// Hold is how long it has to last.
	Hold time.Duration
	// Once: it is not recorded again while it lasts, because it may be no fault.
	Once bool
}

// Decide returns what is to be looked at, each reason at most once.
func Decide(in Input) []Warning {
	warnings := decideModel(in)
	if devices.HolderOf(in.Device) != devices.AssignedNode(in.Device) {
		// What the status says is of the old gateway, and nobody has given the Device to the new one.
		return append(warnings, Warning{names.EventHeldByOtherGateway, clean(deviceclaim.Message(in.Device)), moveHold, false})
	}
	if !in.Connected {
		return warnings
	}
	node := devices.AssignedNode(in.Device)
	reported := conditionsOf(in.Status)
	for _, kind := range slices.Sorted(maps.Keys(reported)) {
		if w, found := ofCondition(reported[kind]); found && !contains(warnings, w.Reason) {
			w.Message = clean("gateway " + node + ": " + w.Message)
			warnings = append(warnings, w)
		}
	}
	if _, delivered := reported[devices.ConditionDelivered]; !delivered && !saysAnything(in.Status) {
		protocol, _, _ := unstructured.NestedString(in.Device.Object, "spec", "protocol", "protocolName")
		warnings = append(warnings, Warning{
			names.EventDeviceNotServed, clean(fmt.Sprintf("nothing on gateway %s serves the Device: no mapper has registered for its protocol %q, and no MQTT app has reported a value or a state", node, protocol)), servedHold, onlyDriven(in.Device),
		})
	}
	return warnings
}

// mqttProtocol is the protocolName of devices that have an app of their own at the gateway's MQTT broker, in KubeEdge's examples.
const mqttProtocol = "mqtt"

// onlyDriven reports whether a device of an MQTT app may rightly never report: each of its properties has a desired value, so it may be an actuator that
// takes them without an answer.
func onlyDriven(device *unstructured.Unstructured) bool {
	protocol, _, _ := unstructured.NestedString(device.Object, "spec", "protocol", "protocolName")
	found, _, _ := unstructured.NestedFieldNoCopy(device.Object, "spec", "properties")
	properties, _ := found.([]any)
	return strings.EqualFold(protocol, mqttProtocol) && len(properties) > 0 && !slices.ContainsFunc(properties, func(item any) bool {
		property, _ := item.(map[string]any)
		value, _, _ := unstructured.NestedString(property, "desired", "value")
		return value == ""
	})
}

func contains(warnings []Warning, reason string) bool {
	return slices.ContainsFunc(warnings, func(w Warning) bool { return w.Reason == reason })
}

func decideModel(in Input) []Warning {
	model, _, _ := unstructured.NestedString(in.Device.Object, "spec", "deviceModelRef", "name")
	switch {
	case model == "":
		return []Warning{{names.EventDeviceModelMissing, "the Device names no DeviceModel in spec.deviceModelRef: no mapper can serve it, and no value is checked", modelHold, false}}
	case !in.ModelExists:
		return []Warning{{names.EventDeviceModelMissing, clean("DeviceModel " + in.Device.GetNamespace() + "/" + model + " does not exist: no mapper can serve the Device, and no value is checked"), modelHold, false}}
	}
	return nil
}

// condition is a condition as a gateway reports it.
type condition struct{ kind, status, reason, message string }

// conditionsOf reads status.extensions.frond.conditions. What is none is left out.
func conditionsOf(status *unstructured.Unstructured) map[string]condition {
	found := map[string]condition{}
	if status == nil {
		return found
	}
	all, _, _ := unstructured.NestedFieldNoCopy(status.Object, "status", "extensions", "frond", "conditions")
	list, _ := all.([]any)
	for _, item := range list[:min(len(list), maxConditions)] {
		fields, ok := item.(map[string]any)
		if !ok {
			continue
		}
		text := func(name string) string {
			value, _ := fields[name].(string)
			return value
		}
		found[text("type")] = condition{text("type"), text("status"), text("reason"), text("message")}
	}
	return found
}

// ofCondition returns the warning of a condition, if it is one.
func ofCondition(c condition) (Warning, bool) {
	if c.status != "False" {
		return Warning{}, false
	}
	switch c.kind + "/" + c.reason {
	case devices.ConditionAccepted + "/Refused":
		return Warning{names.EventDesiredValueRefused, c.message, 0, false}, true
	case devices.ConditionDelivered + "/ModelMissing":
		return Warning{names.EventDeviceModelMissing, c.message, modelHold, false}, true
	case devices.ConditionDelivered + "/MapperRefused":
		return Warning{names.EventMapperRefused, c.message, 0, false}, true
	case devices.ConditionDelivered + "/MapperUnreachable":
		return Warning{names.EventMapperUnreachable, c.message, mapperHold, false}, true
	}
	switch c.kind {
	case devices.ConditionReportsTaken:
		return Warning{names.EventReportRefused, "a message of the device was refused: " + c.message, 0, false}, true
	case devices.ConditionReduction:
		return Warning{names.EventReductionNotUnderstood, c.message, 0, false}, true
	}
	return Warning{}, false
}

// saysAnything reports whether a device has a value or a state.
func saysAnything(status *unstructured.Unstructured) bool {
	if status == nil {
		return false
	}
	state, _, _ := unstructured.NestedString(status.Object, "status", "state")
	twins, _, _ := unstructured.NestedFieldNoCopy(status.Object, "status", "twins")
	list, _ := twins.([]any)
	return state != "" || len(list) > 0
}

// clean makes one line of a text that a gateway or a user has written.
func clean(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, " "))
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}
