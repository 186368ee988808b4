package mqtt_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/devicetwin/mqtt"
)

// read returns a golden payload: the exact JSON that KubeEdge sends, without the line end of the file.
func read(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(string(b), "\n")
}

func checkEncoded[M mqtt.Payload](t *testing.T, file string, message M) {
	t.Helper()
	b := mqtt.Encode(message)
	if diff := cmp.Diff(read(t, file), string(b)); diff != "" {
		t.Errorf("%s (-KubeEdge +ours):\n%s", file, diff)
	}
}

// TestEncode_IsKubeEdgesJSON compares each answer of the gateway, byte by byte.
func TestEncode_IsKubeEdgesJSON(t *testing.T) {
	const at = 1795417712301
	envelope := mqtt.Envelope{EventID: "e1", Timestamp: at}
	typed := &mqtt.TypeMetadata{Type: "int"}
	actual := &mqtt.Value{Value: new("21"), Metadata: &mqtt.ValueMetadata{Timestamp: at}}
	expected := &mqtt.Value{Value: new("30"), Metadata: &mqtt.ValueMetadata{Timestamp: at}}
	reported := &mqtt.Property{Actual: actual, Optional: new(true), Metadata: typed}
	both := &mqtt.Property{Expected: expected, Actual: actual, Optional: new(true), Metadata: typed}

	checkEncoded(t, "update_result.json", mqtt.Twin{Envelope: envelope, Twin: map[string]*mqtt.Property{"temp": reported}})
	checkEncoded(t, "update_result_404.json", mqtt.Failure{Envelope: envelope, Code: mqtt.CodeNotFound, Reason: "device default/t1 is not on this node"})
	checkEncoded(t, "document.json", mqtt.Document{Envelope: envelope, Twin: map[string]*mqtt.DocumentProperty{"temp": {Current: reported}}})
	checkEncoded(t, "delta.json", mqtt.Delta{
		Envelope: envelope, Twin: map[string]*mqtt.Property{"temp": both}, Delta: map[string]string{"temp": "30"},
	})
	checkEncoded(t, "state_result.json", mqtt.StateResult{
		Envelope: envelope, Device: mqtt.StateDevice{Name: "t1", State: "online", LastOnlineTime: "2026-11-23T07:00:00Z"},
	})
	checkEncoded(t, "membership.json", mqtt.Membership{Envelope: envelope, Devices: []mqtt.Member{
		{ID: "default/t1", Name: "t1", Description: "boiler", State: "online", LastOnline: "2026-11-23T07:00:00Z"}, {ID: "default/t2", Name: "t2"},
	}})
	checkEncoded(t, "membership_added.json", mqtt.MembershipUpdate{Envelope: envelope, Added: []mqtt.Member{{ID: "default/t1", Name: "t1", Description: "boiler"}}})
	checkEncoded(t, "membership_removed.json", mqtt.MembershipUpdate{Envelope: envelope, Removed: []mqtt.Member{{ID: "default/t1"}}})
}

func TestDecodeTwinUpdate(t *testing.T) {
	got, err := mqtt.DecodeTwinUpdate([]byte(read(t, "update.json")))
	want := mqtt.Twin{
		Envelope: mqtt.Envelope{EventID: "e1", Timestamp: 1795417712301},
		Twin: map[string]*mqtt.Property{
			"temp":  {Actual: &mqtt.Value{Value: new("21")}, Metadata: &mqtt.TypeMetadata{Type: "int"}},
			"gone":  nil,
			"speed": {Expected: &mqtt.Value{Value: new("3"), Metadata: &mqtt.ValueMetadata{Timestamp: 7}}, Optional: new(false)},
			// A mapper of mappers-go.
			"old": {Actual: &mqtt.Value{Value: new("on"), Metadata: &mqtt.ValueMetadata{}}, Metadata: &mqtt.TypeMetadata{}},
		},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("error %v, (-want +got):\n%s", err, diff)
	}
}

// TestDecodeTwinUpdate_Refuses checks the reason, and that the answer can name the event wherever it can be read.
func TestDecodeTwinUpdate_Refuses(t *testing.T) {
	for name, tt := range map[string]struct{ payload, reason, eventID string }{
		"nothing":          {"", "not the JSON", ""},
		"no object":        {"[]", "not the JSON", ""},
		"no twin":          {`{"event_id":"e"}`, "the key twin is missing", "e"},
		"twin of a word":   {`{"event_id":"e","twin":"x"}`, "not the JSON", "e"},
		"value of number":  {`{"event_id":"e","twin":{"a":{"actual":{"value":1}}}}`, "not the JSON", "e"},
		"event of number":  {`{"event_id":4,"twin":{"a":null}}`, "not the JSON", ""},
		"time of a word":   {`{"event_id":"e","timestamp":"x","twin":{"a":null}}`, "not the JSON", "e"},
		"empty name":       {`{"event_id":"e","twin":{"":null}}`, "name of a property has 0 bytes", "e"},
		"long name":        {`{"event_id":"e","twin":{"` + strings.Repeat("n", mqtt.MaxKey+1) + `":null}}`, "has 129 bytes, 1 to 128", "e"},
		"long value":       {`{"event_id":"e","twin":{"a":{"actual":{"value":"` + strings.Repeat("v", mqtt.MaxValue+1) + `"}}}}`, "4097 bytes, 4096", "e"},
		"long event":       {`{"event_id":"` + strings.Repeat("e", 129) + `","twin":{"a":null}}`, "event_id has 129 bytes", ""},
		"control in value": {`{"event_id":"e","twin":{"a":{"actual":{"value":"x\u0000"}}}}`, "control character", "e"},
		"control in name":  {`{"event_id":"e","twin":{"a\n":null}}`, "control character", "e"},
		"unknown type":     {`{"event_id":"e","twin":{"a":{"metadata":{"type":"list"}}}}`, `the type "list"`, "e"},
		"no UTF-8":         {`{"event_id":"` + "\xff" + `","twin":{"a":null}}`, "not UTF-8", ""},
		"large":            {strings.Repeat(" ", mqtt.MaxPayload+1), "262145 bytes, 262144", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := mqtt.DecodeTwinUpdate([]byte(tt.payload))
			var form *mqtt.FormError
			if !errors.As(err, &form) || !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("error %v, want a FormError with %q", err, tt.reason)
			}
			if got.EventID != tt.eventID || got.Twin != nil {
				t.Errorf("event %q and twin %v beside the error, want %q and none", got.EventID, got.Twin, tt.eventID)
			}
		})
	}
}

func TestDecodeState(t *testing.T) {
	for word, ok := range map[string]bool{"online": true, "OK": true, "DISCONNECTED": true, "Unhealthy": true, "": false, "asleep": false} {
		got, err := mqtt.DecodeState([]byte(`{"event_id":"e","timestamp":1,"state":"` + word + `"}`))
		if (err == nil) != ok || got.EventID != "e" || ok && got.State != word {
			t.Errorf("state %q: %+v, %v", word, got, err)
		}
	}
	if mqtt.IsOnline("offline") || !mqtt.IsOnline("OK") {
		t.Error("only online and ok say that the device was there")
	}
}

func TestParseTopic(t *testing.T) {
	for topic, want := range map[string]mqtt.Topic{
		"$hw/events/device/default/t1/twin/update":          mqtt.DeviceTopic("default", "t1", mqtt.TwinUpdate),
		"$hw/events/device/default/t.1/twin/update/result":  mqtt.DeviceTopic("default", "t.1", mqtt.TwinUpdateResult),
		"$hw/events/device/default/t1/state/update":         mqtt.DeviceTopic("default", "t1", mqtt.StateUpdate),
		"$hw/events/device/default/t1/updated":              mqtt.DeviceTopic("default", "t1", mqtt.DeviceUpdated),
		"$hw/events/node/edge-1/membership/get":             mqtt.NodeTopic("edge-1", mqtt.MembershipGet),
		"$hw/events/node/edge-1/membership/updated":         mqtt.NodeTopic("edge-1", mqtt.MembershipUpdated),
		"$hw/events/device/default/t1/twin/cloud_updated":   mqtt.DeviceTopic("default", "t1", mqtt.TwinCloudUpdated),
		"$hw/events/device/default/t1/twin/update/document": mqtt.DeviceTopic("default", "t1", mqtt.TwinUpdateDocument),
	} {
		got, err := mqtt.ParseTopic(topic)
		if err != nil || got != want || got.String() != topic {
			t.Errorf("%s: %+v %v, as text %s", topic, got, err, got)
		}
		fromApp := want.Kind == mqtt.TwinUpdate || want.Kind == mqtt.StateUpdate || want.Kind == mqtt.MembershipGet
		if got.FromApp() != fromApp {
			t.Errorf("%s: FromApp is %v", topic, got.FromApp())
		}
	}
	for _, topic := range []string{
		"", "a", "$hw/events/device/t1/twin/update", "$hw/events/device//t1/twin/update", "$hw/events/device/default//twin/update",
		"$hw/events/device/default/t1/twin", "$hw/events/device/default/t1/membership/get", "$hw/events/node//membership/get",
		"$hw/events/node/edge-1/twin/update", "$hw/events/device/def ault/t1/twin/update", "$hw/events/device/+/t1/twin/update",
		"$hw/events/device/default/" + strings.Repeat("n", 254) + "/twin/update",
	} {
		if got, err := mqtt.ParseTopic(topic); !errors.Is(err, mqtt.ErrTopic) {
			t.Errorf("%q was read as %+v, %v", topic, got, err)
		}
	}
}
