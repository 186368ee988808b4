package devicewarnings_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/frond-edge/frond/controllers/devicewarnings"
)

func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	if text == "" {
		return nil
	}
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

const (
	withModel    = `{"metadata":{"name":"a","namespace":"n"},"spec":{"nodeName":"gw","deviceModelRef":{"name":"m"},"protocol":{"protocolName":"modbus"}}}`
	held         = `{"metadata":{"name":"a","namespace":"n","annotations":{"frond.io/device-holder":"old"}},"spec":{"nodeName":"gw","deviceModelRef":{"name":"m"}}}`
	withoutModel = `{"metadata":{"name":"a","namespace":"n"},"spec":{"nodeName":"gw","protocol":{"protocolName":"modbus"}}}`
)

// status returns a DeviceStatus with a state and a condition.
func status(condition string) string {
	return `{"status":{"state":"ok","extensions":{"frond":{"conditions":[` + condition + `]}}}}`
}

func TestDecide(t *testing.T) {
	for name, tt := range map[string]struct {
		device, status string
		absentModel    bool
		away           bool
		// want are the reasons, with the time that each has to last.
		want map[string]time.Duration
		// message is in one of them.
		message string
	}{
		"all is well": {withModel, status(`{"type":"Accepted","status":"True","reason":"Confirmed"},{"type":"Delivered","status":"True","reason":"Delivered"}`), false, false, nil, ""},
		"desired value refused": {
			withModel, status(`{"type":"Accepted","status":"False","reason":"Refused","message":"property t: not within 1 and 5"}`), false, false,
			map[string]time.Duration{"DesiredValueRefused": 0},
			"gateway gw: property t: not within 1 and 5",
		},
		"of a gateway that is away": {
			withModel, status(`{"type":"Accepted","status":"False","reason":"Refused"},{"type":"ReportsTaken","status":"False","reason":"WrongType"}`), false, true, nil, "",
		},
		"not confirmed":  {withModel, status(`{"type":"Accepted","status":"Unknown","reason":"NotConfirmed"}`), false, false, nil, ""},
		"no model named": {withoutModel, status(""), false, false, map[string]time.Duration{"DeviceModelMissing": time.Minute}, "spec.deviceModelRef"},
		"no model there": {withModel, status(""), true, false, map[string]time.Duration{"DeviceModelMissing": time.Minute}, "n/m does not exist"},
		"the same, away": {withModel, status(""), true, true, map[string]time.Duration{"DeviceModelMissing": time.Minute}, "n/m"},
		"both say it":    {withModel, status(`{"type":"Delivered","status":"False","reason":"ModelMissing","message":"x"}`), true, false, map[string]time.Duration{"DeviceModelMissing": time.Minute}, "n/m"},
		"the gateway lacks it": {
			withModel, status(`{"type":"Delivered","status":"False","reason":"ModelMissing","message":"not on this node"}`), false, false,
			map[string]time.Duration{"DeviceModelMissing": time.Minute},
			"not on this node",
		},
		"mapper refused":     {withModel, status(`{"type":"Delivered","status":"False","reason":"MapperRefused","message":"no"}`), false, false, map[string]time.Duration{"MapperRefused": 0}, "no"},
		"mapper unreachable": {withModel, status(`{"type":"Delivered","status":"False","reason":"MapperUnreachable"}`), false, false, map[string]time.Duration{"MapperUnreachable": 5 * time.Minute}, ""},
		"mapper pending":     {withModel, status(`{"type":"Delivered","status":"False","reason":"Pending"}`), false, false, nil, ""},
		"report refused": {
			withModel, status(`{"type":"ReportsTaken","status":"False","reason":"WrongType","message":"property t: not an INT"}`), false, false,
			map[string]time.Duration{"ReportRefused": 0},
			"property t: not an INT",
		},
		"reduction not understood": {
			withModel, status(`{"type":"Reduction","status":"False","reason":"NotUnderstood","message":"frond.io/deadband.t: no number"}`), false, false,
			map[string]time.Duration{"ReductionNotUnderstood": 0},
			"frond.io/deadband.t: no number",
		},
		"reports taken again": {withModel, status(`{"type":"ReportsTaken","status":"True","reason":"Taken"}`), false, false, nil, ""},
		"nothing serves it":   {withModel, `{"status":{}}`, false, false, map[string]time.Duration{"DeviceNotServed": 10 * time.Minute}, `"modbus"`},
		"no status at all":    {withModel, "", false, false, map[string]time.Duration{"DeviceNotServed": 10 * time.Minute}, `"modbus"`},
		"no status and away":  {withModel, "", false, true, nil, ""},
		"only values":         {withModel, `{"status":{"twins":[{}]}}`, false, false, nil, ""},
		"moved, and held by its old gateway": {
			held, status(`{"type":"Accepted","status":"False","reason":"Refused","message":"of the old one"}`), false, false,
			map[string]time.Duration{"HeldByOtherGateway": time.Minute},
			"frond.io/force-move=old",
		},
		"the same, the new one is away": {held, "", false, true, map[string]time.Duration{"HeldByOtherGateway": time.Minute}, "gateway gw gets the Device then"},
		"garbage": {
			withModel, `{"status":{"state":7,"twins":"x","extensions":{"frond":{"conditions":[7,{"type":7},{"type":"Accepted","status":false}]}}}}`, false, false,
			map[string]time.Duration{"DeviceNotServed": 10 * time.Minute},
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]time.Duration{}
			var text strings.Builder
			for _, w := range devicewarnings.Decide(devicewarnings.Input{
				Device: object(t, tt.device), Status: object(t, tt.status), ModelExists: !tt.absentModel, Connected: !tt.away,
			}) {
				if _, twice := got[w.Reason]; twice {
					t.Errorf("%s twice", w.Reason)
				}
				got[w.Reason] = w.Hold
				text.WriteString(w.Message)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" && len(tt.want)+len(got) > 0 {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
			if !strings.Contains(text.String(), tt.message) {
				t.Errorf("messages %q, want %q", text.String(), tt.message)
			}
		})
	}
}

// A device of an MQTT app whose properties all have desired values may be an actuator that never reports: it is told of once.
func TestDecide_ActuatorIsToldOfOnce(t *testing.T) {
	device := func(protocol, properties string) string {
		return `{"metadata":{"name":"a","namespace":"n"},"spec":{"nodeName":"gw","deviceModelRef":{"name":"m"},"protocol":{"protocolName":"` + protocol + `"},"properties":[` + properties + `]}}`
	}
	const valve, light, sensor, typed = `{"name":"valve","desired":{"value":"open"}}`, `{"name":"light","desired":{"value":"1"}}`, `{"name":"t"}`, `{"name":"t","desired":{"value":""}}`
	for name, tt := range map[string]struct {
		device string
		once   bool
	}{
		"actuator":                    {device("mqtt", valve+","+light), true},
		"in capitals":                 {device("MQTT", valve), true},
		"with a sensor":               {device("mqtt", valve+","+sensor), false},
		"with a typed client's value": {device("mqtt", valve+","+typed), false},
		"without properties":          {device("mqtt", ""), false},
		"of a mapper":                 {device("modbus", valve), false},
		"garbage":                     {device("mqtt", `7`), false},
	} {
		t.Run(name, func(t *testing.T) {
			got := devicewarnings.Decide(devicewarnings.Input{Device: object(t, tt.device), ModelExists: true, Connected: true})
			if len(got) != 1 || got[0].Reason != "DeviceNotServed" || got[0].Once != tt.once {
				t.Errorf("warnings %+v, want once: %t", got, tt.once)
			}
		})
	}
}

// Whatever a gateway writes as a condition, the text of an Event is one line that Kubernetes takes.
func FuzzDecide(f *testing.F) {
	f.Add("Accepted", "Refused", "a\nb\x1b[31m")
	f.Add("ReportsTaken", "x", strings.Repeat("ä", 2000))
	f.Fuzz(func(t *testing.T, kind, reason, message string) {
		in := devicewarnings.Input{Device: object(t, withModel), ModelExists: true, Connected: true, Status: &unstructured.Unstructured{Object: map[string]any{
			"status": map[string]any{"extensions": map[string]any{"frond": map[string]any{"conditions": []any{
				map[string]any{"type": kind, "status": "False", "reason": reason, "message": message},
			}}}},
		}}}
		for _, w := range devicewarnings.Decide(in) {
			if len(w.Message) > 1024 || !utf8.ValidString(w.Message) || strings.ContainsAny(w.Message, "\n\r\x1b\x00") {
				t.Errorf("message %q", w.Message)
			}
		}
	})
}
