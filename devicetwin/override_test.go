package devicetwin_test

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
)

// TestOverride_Conditions: an override is driven, and the conditions say what that means for the desired values of the Device.
func TestOverride_Conditions(t *testing.T) {
	device := &devices.Device{Spec: devices.DeviceSpec{Properties: []devices.DeviceProperty{
		{Name: "a", Desired: &devices.TwinProperty{Value: "1", Metadata: map[string]string{"unit": "C"}}}, {Name: "b"}, {Name: "c", Desired: &devices.TwinProperty{Value: "5"}},
	}}}
	device.Generation = 4
	until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	override := func(value string) devicetwin.Override {
		return devicetwin.Override{Value: value, By: "ada", Until: until}
	}
	samples := func(values map[string]string) map[string]devicetwin.Sample {
		all := map[string]devicetwin.Sample{}
		for name, value := range values {
			all[name] = devicetwin.Sample{Value: value, Order: devicetwin.Order{Time: 1}}
		}
		return all
	}
	for name, tt := range map[string]struct {
		overrides map[string]devicetwin.Override
		reported  map[string]string
		applied   string // the condition's status, reason and message
		local     string // message of LocalOverride, "" for none
		delta     int
	}{
		"none":                   {nil, map[string]string{"a": "1", "c": "5"}, "True Reported", "", 0},
		"driven":                 {map[string]devicetwin.Override{"a": override("2")}, map[string]string{"a": "1", "c": "5"}, "True Reported", "set on the gateway: a=2 until 2026-01-02T03:04:05Z by ada", 1},
		"reached":                {map[string]devicetwin.Override{"a": override("2")}, map[string]string{"a": "2", "c": "5"}, "False Overridden values that were set on the gateway win until they end, over: a", "a=2", 0},
		"another one differs":    {map[string]devicetwin.Override{"a": override("2")}, map[string]string{"a": "2", "c": "6"}, "over: a; the device does not report the desired value of: c", "a=2", 1},
		"of what has no desired": {map[string]devicetwin.Override{"b": override("7")}, map[string]string{"a": "1", "c": "5"}, "True Reported", "b=7", 1},
		"the same value":         {map[string]devicetwin.Override{"a": override("1")}, map[string]string{"a": "1", "c": "5"}, "True Reported", "a=1", 0},
		"of what is not there":   {map[string]devicetwin.Override{"z": override("1")}, map[string]string{"a": "1", "c": "5"}, "True Reported", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			spec := devicetwin.NewDrivenSpec(device, nil, tt.overrides)
			record := devicetwin.Merge(spec.Fragment(), devicetwin.Record{Reported: samples(tt.reported)})
			if got := record.Desired["a"]; got.Value != "1" || got.Metadata["unit"] != "C" {
				t.Errorf("the record's desired value is %v, not the Device's", got)
			}
			conditions := devicetwin.Conditions(spec, record, nil, time.Now())
			applied := meta.FindStatusCondition(conditions, devices.ConditionApplied)
			if got := string(applied.Status) + " " + applied.Reason + " " + applied.Message; !strings.Contains(got, tt.applied) {
				t.Errorf("Applied is %s, want %s", got, tt.applied)
			}
			local := meta.FindStatusCondition(conditions, devices.ConditionLocalOverride)
			if (local != nil) != (tt.local != "") || local != nil && (!strings.Contains(local.Message, tt.local) || local.ObservedGeneration != 4 || local.Status != metav1.ConditionTrue) {
				t.Errorf("LocalOverride is %+v, want %q", local, tt.local)
			}
			if delta := devicetwin.Delta(spec, record); len(delta) != tt.delta {
				t.Errorf("delta %v", delta)
			}
			ended := devicetwin.Conditions(devicetwin.NewSpec(device, nil), record, conditions, time.Now())
			if meta.FindStatusCondition(ended, devices.ConditionLocalOverride) != nil {
				t.Error("the condition stays after the end")
			}
		})
	}
	if device.Spec.Properties[0].Desired.Value != "1" || device.Spec.Properties[1].Desired != nil {
		t.Error("the Device was changed")
	}
}

// Accepted is about the desired value of the Device, also while an override wins over it; a model that came to refuse the override is told in its own
// condition.
func TestOverride_AcceptedIsAboutTheDevice(t *testing.T) {
	model := &devices.DeviceModel{Spec: devices.DeviceModelSpec{Properties: []devices.ModelProperty{{Name: "a", Type: "INT", AccessMode: "ReadWrite", Maximum: "50"}}}}
	for name, tt := range map[string]struct{ desired, override, reason, local string }{
		"both are allowed":        {"40", "45", devicetwin.ReasonNotConfirmed, ""},
		"the override is refused": {"40", "60", devicetwin.ReasonNotConfirmed, "(refused: property a:"},
		"the Device is refused":   {"70", "45", devicetwin.ReasonRefused, ""},
	} {
		t.Run(name, func(t *testing.T) {
			device := &devices.Device{Spec: devices.DeviceSpec{Properties: []devices.DeviceProperty{{Name: "a", Desired: &devices.TwinProperty{Value: tt.desired}}}}}
			spec := devicetwin.NewDrivenSpec(device, model, map[string]devicetwin.Override{"a": {Value: tt.override, By: "ada"}})
			conditions := devicetwin.Conditions(spec, devicetwin.Record{}, nil, time.Now())
			if got := meta.FindStatusCondition(conditions, devices.ConditionAccepted); got.Reason != tt.reason {
				t.Errorf("Accepted is %+v, want %s", got, tt.reason)
			}
			if got := meta.FindStatusCondition(conditions, devices.ConditionLocalOverride); !strings.Contains(got.Message, tt.local) || tt.local == "" && strings.Contains(got.Message, "refused") {
				t.Errorf("LocalOverride is %+v, want %q", got, tt.local)
			}
		})
	}
}
