package mapper

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

func wantedOf(value byte) *wanted {
	return &wanted{device: &dmipb.Device{Name: string('a' + rune(value))}, model: &dmipb.DeviceModel{}, sum: [32]byte{value}}
}

// TestEntry_Next: what is called in each state. remove stands only where the mapper certainly has the device.
func TestEntry_Next(t *testing.T) {
	one, two := wantedOf(1), wantedOf(2)
	for name, tt := range map[string]struct {
		e    entry
		want action
	}{
		"new":                              {entry{want: one}, update},
		"as it should be":                  {entry{want: one, has: present, sum: one.sum}, nothing},
		"changed":                          {entry{want: two, has: present, sum: one.sum}, update},
		"a call was not answered":          {entry{want: one, has: uncertain, sum: one.sum, resend: true}, update},
		"edgecore has restarted":           {entry{want: one, has: uncertain, sum: one.sum}, nothing},
		"gone":                             {entry{has: present}, remove},
		"gone, but perhaps never there":    {entry{has: uncertain}, ensure},
		"gone and not there":               {entry{}, nothing},
		"its model is missing":             {entry{has: present, modelMissing: true}, nothing},
		"its model is missing, it is new":  {entry{modelMissing: true}, nothing},
		"its model is missing, not stored": {entry{has: uncertain, modelMissing: true, resend: true}, nothing},
	} {
		if got := tt.e.next(); got != tt.want {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

// call is a call to a mapper that may crash, hang or refuse.
type call struct {
	outcome outcome
	// carried: the mapper has done it, whatever it answered.
	carried bool
}

// TestEntry_NeverRemovesWhatIsNotThere tries all sequences of calls that succeed, are refused or break, with edgecore's restarts between them, against
// a mapper that ends when it is asked to remove what it does not have. In the end the mapper has what it should.
func TestEntry_NeverRemovesWhatIsNotThere(t *testing.T) {
	calls := []call{{done, true}, {refused, false}, {broken, true}, {broken, false}}
	now := time.Now()
	const steps = 5
	for sequence := range 1 << (3 * steps) { // each step: 2 bits for the call, 1 for a restart before it
		w, e, there := wantedOf(1), &entry{}, false
		for step := range steps + 12 {
			c, restart := calls[0], false
			if step < steps {
				bits := sequence >> (3 * step)
				c, restart = calls[bits&3], bits&4 != 0
			}
			if e.want = w; step >= steps/2 {
				e.want = nil
			}
			if step == steps/2 { // as with each change of a Device
				e.failures = 0
			}
			if restart {
				e = reload(t, e)
			}
			a := e.next()
			if a == update && e.has == absent {
				e.announce(w)
			}
			switch {
			case a == nothing:
				continue
			case a == remove && !there:
				t.Fatalf("sequence %x, step %d: removes what is not there", sequence, step)
			case c.carried:
				there = a != remove
			}
			e.record(a, w, c.outcome, errors.New("no"), now)
		}
		if there || e.has != absent {
			t.Fatalf("sequence %x: the device is left in the mapper: %v, %v", sequence, there, e.has)
		}
	}
}

// reload is a restart of edgecore.
func reload(t *testing.T, e *entry) *entry {
	t.Helper()
	raw := encodeEntry(e)
	if raw == nil {
		return &entry{want: e.want}
	}
	loaded, err := decodeEntry(raw)
	if err != nil {
		t.Fatal(err)
	}
	loaded.want = e.want
	return loaded
}

// TestRecords_RoundTrip: a record is what was stored, but uncertain.
func TestRecords_RoundTrip(t *testing.T) {
	e := entry{has: present, device: &dmipb.Device{Name: "d"}, model: &dmipb.DeviceModel{Name: "m"}, sum: [32]byte{7}}
	r := Registration{Name: "n", Address: "/etc/kubeedge/m.sock", Identity: "pod:x"}
	id, protocol := types.NamespacedName{Namespace: "ns", Name: "d"}, "mod/bus 1%"
	protocols, damaged := decodeRecords(map[string][]byte{
		mapperKey(protocol): encodeRegistration(r), deviceKey(protocol, id): encodeEntry(&e),
		"device/x/a/b": []byte(`{"sum":"AA=="}`), "device/x": nil, "other": nil, "mapper/y": []byte("{"),
	})
	if len(damaged) != 4 || protocols[protocol] == nil {
		t.Fatalf("damaged %v, protocols %v", damaged, protocols)
	}
	if diff := cmp.Diff(r, protocols[protocol].registration); diff != "" {
		t.Errorf("registration (-want +got):\n%s", diff)
	}
	got := protocols[protocol].entries[id]
	if got.has != uncertain || got.sum != e.sum || !proto.Equal(got.device, e.device) || !proto.Equal(got.model, e.model) {
		t.Errorf("entry %+v", got)
	}
}

// TestAnswer_Limits: what does not fit into the answer of a registration, or would get a model of another namespace, comes later.
func TestAnswer_Limits(t *testing.T) {
	entries := map[types.NamespacedName]*entry{}
	add := func(namespace, name string, size int) {
		entries[types.NamespacedName{Namespace: namespace, Name: name}] = &entry{want: &wanted{
			device: &dmipb.Device{Namespace: namespace, Name: name, Spec: &dmipb.DeviceSpec{DeviceModelReference: string(make([]byte, size))}},
			model:  &dmipb.DeviceModel{Namespace: namespace, Name: "m"},
		}}
	}
	add("a", "1", 10)
	add("a", "2", 10)
	add("b", "3", 10)
	response, given := answer(entries)
	if len(response.GetDeviceList()) != 2 || len(response.GetModelList()) != 1 || given[types.NamespacedName{Namespace: "b", Name: "3"}] {
		t.Errorf("devices %v, models %v", response.GetDeviceList(), response.GetModelList())
	}
	for i := range 5 {
		add("a", string(rune('a'+i)), 1<<20)
	}
	if response, _ = answer(entries); proto.Size(response) > 4<<20 || proto.Size(response) < 1<<20 {
		t.Errorf("an answer of %d bytes, and gRPC takes 4 MiB", proto.Size(response))
	}
}
