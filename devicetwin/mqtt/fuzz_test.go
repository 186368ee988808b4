package mqtt_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/devicetwin/mqtt"
)

func FuzzDecodeTwinUpdate(f *testing.F) {
	f.Add([]byte(read(f, "update.json")))
	f.Add([]byte(`{"event_id":4,"twin":{"":null}}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		got, err := mqtt.DecodeTwinUpdate(payload)
		if err != nil {
			return
		}
		encoded := mqtt.Encode(got)
		again, err := mqtt.DecodeTwinUpdate(encoded)
		if len(encoded) > mqtt.MaxPayload {
			return // escapes are longer than what they stand for
		}
		if diff := cmp.Diff(got, again); err != nil || diff != "" {
			t.Errorf("%s decodes to something else: %v\n%s", encoded, err, diff)
		}
	})
}

func FuzzDecodeState(f *testing.F) {
	f.Add([]byte(`{"event_id":"e1","timestamp":1795417712301,"state":"online"}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		got, err := mqtt.DecodeState(payload)
		if err != nil {
			return
		}
		encoded := mqtt.Encode(got)
		if again, err := mqtt.DecodeState(encoded); err != nil || again != got {
			t.Errorf("%s decodes to %+v, %v", encoded, again, err)
		}
	})
}

func FuzzParseTopic(f *testing.F) {
	f.Add("$hw/events/device/default/t1/twin/update")
	f.Add("$hw/events/node/edge-1/membership/get")
	f.Fuzz(func(t *testing.T, topic string) {
		if got, err := mqtt.ParseTopic(topic); err == nil && got.String() != topic {
			t.Errorf("%q was read as %+v, which is %q", topic, got, got)
		}
	})
}
