package broker

import (
	"strings"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/mqtt"
)

// encode returns a message about the device or node of a topic.
func encode[M mqtt.Payload](topic mqtt.Topic, kind mqtt.Kind, payload M) Message {
	topic.Kind = kind
	return Message{Topic: topic.String(), Payload: mqtt.Encode(payload)}
}

// updateOf returns what a message says.
func updateOf(m mqtt.Twin) devicetwin.Update {
	u := devicetwin.Update{Time: m.Timestamp, Properties: make(map[string]devicetwin.PropertyUpdate, len(m.Twin))}
	for name, p := range m.Twin {
		if p == nil || p.Metadata != nil && p.Metadata.Type == mqtt.TypeDeleted {
			u.Properties[name] = devicetwin.PropertyUpdate{Delete: true}
			continue
		}
		update := devicetwin.PropertyUpdate{Required: p.Optional != nil && !*p.Optional}
		if p.Metadata != nil {
			update.Type = p.Metadata.Type
		}
		update.Actual, update.ActualTime = partsOf(p.Actual)
		update.Expected, update.ExpectedTime = partsOf(p.Expected)
		u.Properties[name] = update
	}
	return u
}

func partsOf(v *mqtt.Value) (value *string, at int64) {
	if v == nil {
		return nil, 0
	}
	if v.Metadata != nil {
		at = v.Metadata.Timestamp
	}
	return v.Value, at
}

// resultOf returns the properties of a message as they are now; deleted ones are null.
func resultOf(m mqtt.Twin, twin devicetwin.Twin, at int64) map[string]*mqtt.Property {
	result := make(map[string]*mqtt.Property, len(m.Twin))
	now := all(twin, at)
	for name, sent := range m.Twin {
		result[name] = now[name]
		if p := now[name]; p != nil && sent != nil && sent.Expected == nil {
			result[name] = &mqtt.Property{Actual: p.Actual, Optional: p.Optional, Metadata: p.Metadata}
		}
	}
	return result
}

// documentOf returns the properties of a message as they were and as they are.
func documentOf(m mqtt.Twin, before, after devicetwin.Twin, at int64) map[string]*mqtt.DocumentProperty {
	last, current := all(before, at), all(after, at)
	document := make(map[string]*mqtt.DocumentProperty, len(m.Twin))
	for name := range m.Twin {
		document[name] = &mqtt.DocumentProperty{Last: last[name], Current: current[name]}
	}
	return document
}

// all returns the properties with a value.
func all(twin devicetwin.Twin, at int64) map[string]*mqtt.Property {
	properties := map[string]*mqtt.Property{}
	for i := range twin.Spec.Properties {
		if p := propertyOf(&twin.Spec.Properties[i], twin.Record, at); p != nil {
			properties[twin.Spec.Properties[i].Name] = p
		}
	}
	return properties
}

// withExpected returns the properties with an expected value.
func withExpected(twin devicetwin.Twin, at int64) map[string]*mqtt.Property {
	properties := all(twin, at)
	for name, p := range properties {
		if p.Expected == nil {
			delete(properties, name)
		}
	}
	return properties
}

// propertyOf returns a property as apps see it, or nil if it has no value. Expected is the desired value of Kubernetes, which has no time of its own
// and gets that of the message; without one it is what an app has written.
func propertyOf(spec *devicetwin.PropertySpec, r devicetwin.Record, at int64) *mqtt.Property {
	reported, observed := r.Reported[spec.Name], r.Observed[spec.Name]
	optional := !r.Required[spec.Name]
	p := mqtt.Property{Actual: valueOf(reported), Expected: valueOf(observed), Optional: &optional, Metadata: &mqtt.TypeMetadata{Type: typeOf(spec, reported)}}
	if spec.Desired != nil && spec.Refused == nil {
		value := spec.Desired.Value
		p.Expected = &mqtt.Value{Value: &value, Metadata: &mqtt.ValueMetadata{Timestamp: at}}
	}
	if p.Actual == nil && p.Expected == nil {
		return nil
	}
	return &p
}

func valueOf(s devicetwin.Sample) *mqtt.Value {
	if !s.Exists() {
		return nil
	}
	return &mqtt.Value{Value: &s.Value, Metadata: &mqtt.ValueMetadata{Timestamp: s.Time}}
}

// typeOf returns the type that the app has named, else that of the model in KubeEdge's words.
func typeOf(spec *devicetwin.PropertySpec, reported devicetwin.Sample) string {
	word := strings.ToLower(spec.Type)
	if reported.Type != "" || !mqtt.IsType(word) {
		return devicetwin.TypeName(reported)
	}
	if word == "" {
		return "string"
	}
	return word
}

func stateOf(twin devicetwin.Twin) mqtt.StateDevice {
	device := mqtt.StateDevice{Name: twin.Spec.ID.Name, State: twin.Record.State.Value}
	if mqtt.IsOnline(device.State) {
		device.LastOnlineTime = twin.Record.LastOnlineTime()
	}
	return device
}

func memberOf(twin devicetwin.Twin) mqtt.Member {
	state := stateOf(twin)
	return mqtt.Member{
		ID: twin.Spec.ID.String(), Name: state.Name, Description: twin.Spec.Description, State: state.State, LastOnline: state.LastOnlineTime,
	}
}
