package devicetwin_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
)

var now = time.Date(2026, 11, 23, 7, 0, 0, 0, time.UTC)

func property(name, desired string) devices.DeviceProperty {
	p := devices.DeviceProperty{Name: name}
	if desired != "" {
		p.Desired = &devices.TwinProperty{Value: desired}
	}
	return p
}

func newDevice(properties ...devices.DeviceProperty) *devices.Device {
	return &devices.Device{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "t1", UID: "u1", Generation: 1, Labels: map[string]string{"description": "boiler"}},
		Spec:       devices.DeviceSpec{NodeName: "edge-1", DeviceModelRef: &corev1.LocalObjectReference{Name: "m"}, Properties: properties},
	}
}

// newModel describes one property of each kind.
func newModel() *devices.DeviceModel {
	return &devices.DeviceModel{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"}, Spec: devices.DeviceModelSpec{Properties: []devices.ModelProperty{
		{Name: "temp", Type: "INT", AccessMode: "ReadWrite", Minimum: "1", Maximum: "50"},
		{Name: "level", Type: "DOUBLE", AccessMode: "ReadOnly"},
		{Name: "ratio", Type: "FLOAT", AccessMode: "ReadWrite", Minimum: "low"},
		{Name: "on", Type: "BOOLEAN", AccessMode: "ReadWrite"},
		{Name: "text", Type: "STRING"},
	}}}
}

func newSpec(t testing.TB, properties ...devices.DeviceProperty) devicetwin.Spec {
	t.Helper()
	return devicetwin.NewSpec(newDevice(properties...), newModel())
}

// actual is a message's report of one property.
func actual(name, value string) map[string]devicetwin.PropertyUpdate {
	return map[string]devicetwin.PropertyUpdate{name: {Actual: &value}}
}

// report merges a message into a record.
func report(t testing.TB, spec devicetwin.Spec, r devicetwin.Record, u devicetwin.Update) devicetwin.Record {
	t.Helper()
	a, err := spec.Admit(r, u, devicetwin.Reception{Time: now})
	if err != nil {
		t.Fatal(err)
	}
	return devicetwin.Merge(r, a.Fragment)
}

func TestNewSpec_RefusesDesired(t *testing.T) {
	for name, tt := range map[string]struct{ property, value, reason string }{
		"fits":           {"temp", "21", ""},
		"word":           {"temp", "hot", devicetwin.ReasonWrongType},
		"fraction":       {"temp", "21.5", devicetwin.ReasonWrongType},
		"below":          {"temp", "0", devicetwin.ReasonOutOfRange},
		"above":          {"temp", "51", devicetwin.ReasonOutOfRange},
		"read-only":      {"level", "1", devicetwin.ReasonReadOnly},
		"not described":  {"other", "1", devicetwin.ReasonUnknownProperty},
		"no bound":       {"ratio", "0.5", ""},
		"no truth":       {"on", "maybe", devicetwin.ReasonWrongType},
		"truth":          {"on", "true", ""},
		"long":           {"text", strings.Repeat("x", 4097), devicetwin.ReasonNotAllowed},
		"control":        {"text", "a\x00", devicetwin.ReasonNotAllowed},
		"any other text": {"text", "größer als 3", ""},
	} {
		t.Run(name, func(t *testing.T) {
			spec := newSpec(t, property(tt.property, tt.value))
			got := ""
			if refused := spec.Properties[0].Refused; refused != nil {
				got = refused.Reason
			}
			if got != tt.reason {
				t.Errorf("refused for %q, want %q", got, tt.reason)
			}
			if delta := devicetwin.Delta(spec, spec.Fragment()); (len(delta) == 1) != (tt.reason == "") {
				t.Errorf("the delta is %v", delta)
			}
			if without := devicetwin.NewSpec(newDevice(property(tt.property, tt.value)), nil); tt.reason != devicetwin.ReasonNotAllowed && without.Properties[0].Refused != nil {
				t.Errorf("without a model it is refused: %v", without.Properties[0].Refused)
			}
		})
	}
}

func TestAdmit_Refuses(t *testing.T) {
	spec := newSpec(t, property("temp", "30"), property("on", ""), property("text", ""))
	value := func(v, typ string) devicetwin.PropertyUpdate { return devicetwin.PropertyUpdate{Actual: &v, Type: typ} }
	for name, tt := range map[string]struct {
		property string
		update   devicetwin.PropertyUpdate
		reason   string
	}{
		"fits":               {"temp", value("21", "int"), ""},
		"out of range":       {"temp", value("-40", "int"), ""}, // the device knows
		"empty":              {"temp", value("", ""), ""},
		"unknown":            {"speed", value("1", ""), devicetwin.ReasonUnknownProperty},
		"unknown deletion":   {"speed", devicetwin.PropertyUpdate{Delete: true}, devicetwin.ReasonUnknownProperty},
		"not the model's":    {"temp", value("warm", ""), devicetwin.ReasonWrongType},
		"not the message's":  {"text", value("warm", "float"), devicetwin.ReasonWrongType},
		"expected":           {"on", devicetwin.PropertyUpdate{Expected: new(string)}, ""},
		"deletion":           {"text", devicetwin.PropertyUpdate{Delete: true}, ""},
		"a required one":     {"text", devicetwin.PropertyUpdate{Required: true}, ""},
		"required, deletion": {"temp", devicetwin.PropertyUpdate{Delete: true}, devicetwin.ReasonRequired},
	} {
		t.Run(name, func(t *testing.T) {
			record := spec.Fragment()
			record.Required = map[string]bool{"temp": true}
			_, err := spec.Admit(record, devicetwin.Update{Properties: map[string]devicetwin.PropertyUpdate{tt.property: tt.update, "on": value("true", "")}}, devicetwin.Reception{Time: now})
			var refusal *devicetwin.Refusal
			switch {
			case tt.reason == "" && err != nil, tt.reason != "" && (!errors.As(err, &refusal) || refusal.Reason != tt.reason || refusal.Property != tt.property):
				t.Errorf("got %v, want the reason %q", err, tt.reason)
			}
		})
	}
}

// TestAdmit_Times checks which time a value gets, and that no clock hides later values for ever.
func TestAdmit_Times(t *testing.T) {
	spec := newSpec(t, property("temp", ""))
	ms := now.UnixMilli()
	for name, tt := range map[string]struct {
		message, own, want int64
		future             int
	}{
		"none":             {0, 0, ms, 0},
		"message's":        {ms - 5, 0, ms - 5, 0},
		"own":              {ms - 5, ms - 9, ms - 9, 0},
		"a little ahead":   {ms + 1000, 0, ms + 1000, 0},
		"far ahead":        {ms + 3_600_000, 0, ms, 1},
		"own is far ahead": {ms - 5, ms + 3_600_000, ms, 1},
		"negative":         {-4, -4, ms, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := actual("temp", "1")
			u := p["temp"]
			u.ActualTime = tt.own
			a, err := spec.Admit(devicetwin.Record{}, devicetwin.Update{Time: tt.message, Properties: map[string]devicetwin.PropertyUpdate{"temp": u}}, devicetwin.Reception{Time: now})
			if got := a.Fragment.Reported["temp"].Time; err != nil || got != tt.want || a.Future != tt.future {
				t.Errorf("time %d and %d in the future (%v), want %d and %d", got, a.Future, err, tt.want, tt.future)
			}
		})
	}
	t.Run("clock set back", func(t *testing.T) {
		ahead := report(t, spec, spec.Fragment(), devicetwin.Update{Properties: actual("temp", "1")})
		a, err := spec.Admit(ahead, devicetwin.Update{Properties: actual("temp", "2")}, devicetwin.Reception{Time: now.Add(-24 * time.Hour)})
		got := devicetwin.Merge(ahead, a.Fragment).Reported["temp"]
		if err != nil || got.Value != "2" || got.Time != now.Add(-24*time.Hour).UnixMilli() || a.Stale != 0 {
			t.Errorf("reported is %+v (%v): a gateway whose clock was set back hides new values", got, err)
		}
	})
}

// TestAdmit_WithoutTimes: messages without a time count in the order of their reception, also while the gateway's clock steps back. One that comes
// again after a crash replaces nothing that came after it.
func TestAdmit_WithoutTimes(t *testing.T) {
	spec := newSpec(t, property("temp", ""))
	r := spec.Fragment()
	take := func(value string, at time.Time, again bool) {
		t.Helper()
		a, err := spec.Admit(r, devicetwin.Update{Properties: actual("temp", value)}, devicetwin.Reception{Time: at, Again: again})
		if err != nil {
			t.Fatal(err)
		}
		r = devicetwin.Merge(r, a.Fragment)
	}
	check := func(want string) {
		t.Helper()
		if got := r.Reported["temp"].Value; got != want {
			t.Errorf("reported is %s, want %s", got, want)
		}
	}
	take("9", now, false)
	take("2", now, false)
	check("2")
	take("1", now.Add(-time.Minute), false)
	check("1")
	take("3", now.Add(time.Second), false)
	take("2", now, true)
	check("3")
	take("3", now.Add(time.Second), true)
	take("4", now.Add(2*time.Second), true)
	check("4")
}

func TestDelta(t *testing.T) {
	spec := newSpec(t, property("temp", "30"), property("ratio", "0.50"), property("text", ""), property("level", "3"))
	check := func(r devicetwin.Record, want map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, devicetwin.Delta(spec, r)); diff != "" {
			t.Errorf("delta (-want +got):\n%s", diff)
		}
	}
	r := spec.Fragment()
	check(r, map[string]string{"temp": "30", "ratio": "0.50"})
	r = report(t, spec, r, devicetwin.Update{Properties: actual("temp", "21")})
	check(r, map[string]string{"temp": "30", "ratio": "0.50"})
	r = report(t, spec, r, devicetwin.Update{Properties: actual("temp", "30")})
	r = report(t, spec, r, devicetwin.Update{Properties: actual("ratio", "0.5")})
	check(r, map[string]string{})
	r = report(t, spec, r, devicetwin.Update{Properties: map[string]devicetwin.PropertyUpdate{"temp": {Delete: true}}})
	check(r, map[string]string{"temp": "30"})
}

// TestStatus compares the JSON with what KubeEdge shows.
func TestStatus(t *testing.T) {
	spec := newSpec(t, property("temp", "30"), property("text", ""), property("on", ""))
	r := report(t, spec, spec.Fragment(), devicetwin.Update{Time: 1795417712301, Properties: map[string]devicetwin.PropertyUpdate{
		"temp": {Actual: new("21"), Type: "int", Expected: new("30"), ExpectedTime: 1795417712000}, "text": {Actual: new("a b")},
	}})
	r = devicetwin.Merge(r, spec.AdmitState(r, "online", true, 1795417712301, devicetwin.Reception{Time: now}).Fragment)
	r = devicetwin.Merge(r, spec.AdmitState(r, "offline", false, 1795417712999, devicetwin.Reception{Time: now}).Fragment)
	status, err := devicetwin.Status(spec, r, devicetwin.Conditions(spec, r, nil, now))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.MarshalIndent(status, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want := `{
  "twins": [
    {
      "propertyName": "temp",
      "reported": {
        "value": "21",
        "metadata": {
          "timestamp": "1795417712301",
          "type": "int"
        }
      },
      "observedDesired": {
        "value": "30",
        "metadata": {
          "timestamp": "1795417712000",
          "type": "int"
        }
      }
    },
    {
      "propertyName": "text",
      "reported": {
        "value": "a b",
        "metadata": {
          "timestamp": "1795417712301",
          "type": "string"
        }
      }
    }
  ],
  "state": "offline",
  "lastOnlineTime": "2026-11-23T07:08:32Z",
  "extensions": {
    "frond": {
      "conditions": [
        {
          "type": "Accepted",
          "status": "True",
          "observedGeneration": 1,
          "lastTransitionTime": "2026-11-23T07:00:00Z",
          "reason": "Confirmed",
          "message": "each desired value is confirmed"
        },
        {
          "type": "Applied",
          "status": "False",
          "observedGeneration": 1,
          "lastTransitionTime": "2026-11-23T07:00:00Z",
          "reason": "Differs",
          "message": "the device does not report the desired value of: temp"
        }
      ]
    }
  }
}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// A Device has the condition Reduction from its first annotation about telemetry on.
func TestConditions_Reduction(t *testing.T) {
	var conditions []metav1.Condition
	check := func(want string, annotations map[string]string) {
		t.Helper()
		device := newDevice(property("temp", ""), property("text", ""))
		device.Annotations = annotations
		spec := devicetwin.NewSpec(device, newModel())
		conditions = devicetwin.Conditions(spec, spec.Fragment(), conditions, now)
		got := ""
		for _, c := range conditions {
			if c.Type == devices.ConditionReduction {
				got = string(c.Status) + " " + c.Reason + ": " + c.Message
			}
		}
		if got != want {
			t.Errorf("condition %q, want %q", got, want)
		}
	}
	check("", nil)
	check("True Reducing: samples of 1 properties are reduced", map[string]string{"frond.io/deadband.temp": "2"})
	check("False NotUnderstood: all samples are kept: frond.io/change-only.x: the Device has no such property; frond.io/deadband.text: the type of the property is STRING, which has no deadband",
		map[string]string{"frond.io/deadband.temp": "2", "frond.io/deadband.text": "2", "frond.io/change-only.x": "true"})
	check("True AllKept: all samples are kept", nil)
}

// TestConditions follows one desired value from its refusal to the device.
func TestConditions(t *testing.T) {
	var conditions []metav1.Condition
	clock := now
	check := func(spec devicetwin.Spec, r devicetwin.Record, want ...string) {
		t.Helper()
		clock = clock.Add(time.Minute)
		before := conditions
		conditions = devicetwin.Conditions(spec, r, conditions, clock)
		var got []string
		for i, c := range conditions {
			got = append(got, c.Type+"="+string(c.Status)+" "+c.Reason)
			if c.ObservedGeneration != spec.Generation {
				t.Errorf("%s is of generation %d, want %d", c.Type, c.ObservedGeneration, spec.Generation)
			}
			if i < len(before) && before[i].Status == c.Status && before[i].LastTransitionTime != c.LastTransitionTime {
				t.Errorf("%s did not change, but its time did", c.Type)
			}
			if i < len(before) && before[i].Status != c.Status && !c.LastTransitionTime.Time.Equal(clock) {
				t.Errorf("%s changed, but its time is %v", c.Type, c.LastTransitionTime)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("conditions (-want +got):\n%s", diff)
		}
	}
	none := newSpec(t, property("temp", ""))
	check(none, none.Fragment(), "Accepted=True NoDesiredValues", "Applied=True NoDesiredValues")
	refused := newSpec(t, property("temp", "hot"))
	check(refused, refused.Fragment(), "Accepted=False Refused", "Applied=False Differs")
	spec := newSpec(t, property("temp", "30"))
	r := spec.Fragment()
	check(spec, r, "Accepted=Unknown NotConfirmed", "Applied=False Differs")
	r = report(t, spec, r, devicetwin.Update{Properties: map[string]devicetwin.PropertyUpdate{"temp": {Expected: new("30")}}})
	check(spec, r, "Accepted=True Confirmed", "Applied=False Differs")
	r = report(t, spec, r, devicetwin.Update{Properties: actual("temp", "30")})
	check(spec, r, "Accepted=True Confirmed", "Applied=True Reported")
}
