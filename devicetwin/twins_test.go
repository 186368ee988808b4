package devicetwin_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
)

var deviceID = types.NamespacedName{Namespace: "default", Name: "t1"}

// memoryStore is a store whose writes can fail.
type memoryStore struct {
	records map[types.NamespacedName][]byte
	err     error
	saves   int
}

func (m *memoryStore) SaveTwins(_ context.Context, records map[types.NamespacedName][]byte) error {
	m.saves++
	if m.err != nil {
		return m.err
	}
	for id, raw := range records {
		if raw == nil {
			delete(m.records, id)
		} else {
			m.records[id] = raw
		}
	}
	return nil
}

func (m *memoryStore) LoadTwins(context.Context) (map[types.NamespacedName][]byte, error) {
	return maps.Clone(m.records), m.err
}

func newStore() *memoryStore { return &memoryStore{records: map[types.NamespacedName][]byte{}} }

// open returns the twins of a gateway that starts with a store.
func open(t testing.TB, store *memoryStore) *devicetwin.Twins {
	t.Helper()
	twins := devicetwin.NewTwins(store, func() time.Time { return now })
	if err := twins.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	return twins
}

func commit(t testing.TB, twins *devicetwin.Twins) {
	t.Helper()
	if _, _, err := twins.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// update sends the value of temp.
func update(t testing.TB, twins *devicetwin.Twins, value string, at int64) {
	t.Helper()
	if _, _, err := twins.Update(deviceID, devicetwin.Update{Time: at, Properties: actual("temp", value)}, devicetwin.Reception{Time: now}); err != nil {
		t.Fatal(err)
	}
}

// checkReported compares the reported value of temp; "" is none.
func checkReported(t testing.TB, twins *devicetwin.Twins, want string) {
	t.Helper()
	twin, err := twins.Get(deviceID)
	if got := twin.Record.Reported["temp"].Value; err != nil || got != want {
		t.Errorf("reported is %q (%v), want %q", got, err, want)
	}
}

func TestTwins_SurviveRestart(t *testing.T) {
	store := newStore()
	twins := open(t, store)
	if _, created := twins.SetDevice(newSpec(t, property("temp", ""))); !created {
		t.Error("a new device is not reported as one")
	}
	update(t, twins, "21", 5)
	commit(t, twins)
	if store.saves != 1 {
		t.Errorf("%d writes for one commit", store.saves)
	}
	update(t, twins, "22", 6) // never committed

	twins = open(t, store)
	if _, err := twins.Get(deviceID); !errors.Is(err, devicetwin.ErrNoDevice) {
		t.Errorf("a device without its Device: %v", err)
	}
	if _, created := twins.SetDevice(newSpec(t, property("temp", ""))); created {
		t.Error("a device from before the restart is reported as new")
	}
	checkReported(t, twins, "21")
	update(t, twins, "20", 4) // late, of before the restart
	checkReported(t, twins, "21")
}

func TestTwins_DeviceChanges(t *testing.T) {
	twins := open(t, newStore())
	twins.SetDevice(newSpec(t, property("temp", "")))
	update(t, twins, "21", 5)

	changed := newDevice(property("temp", "30"))
	changed.Generation = 2
	twin, created := twins.SetDevice(devicetwin.NewSpec(changed, newModel()))
	if delta := devicetwin.Delta(twin.Spec, twin.Record); created || delta["temp"] != "30" {
		t.Errorf("created %v, delta %v", created, delta)
	}
	checkReported(t, twins, "21")
	if twin, _ := twins.SetDevice(newSpec(t, property("temp", "7"))); twin.Record.Desired["temp"].Value != "30" {
		t.Error("an older Device replaced a newer one")
	}

	without := newDevice(property("speed", ""))
	without.Generation = 3
	twins.SetDevice(devicetwin.NewSpec(without, nil))
	checkReported(t, twins, "")

	again := newDevice(property("temp", ""))
	again.UID = "u2"
	if _, created := twins.SetDevice(devicetwin.NewSpec(again, nil)); !created {
		t.Error("a Device that was created again has the values of the one before")
	}
	if !twins.RemoveDevice(deviceID) || len(twins.IDs()) != 0 {
		t.Error("the device is still there")
	}
}

// TestTwins_StoreFails checks that what could not be stored is not kept, and that nothing of before is lost.
func TestTwins_StoreFails(t *testing.T) {
	store := newStore()
	twins := open(t, store)
	twins.SetDevice(newSpec(t, property("temp", "")))
	update(t, twins, "21", 5)
	commit(t, twins)

	twins = open(t, store) // what came from the store is kept like what was committed
	twins.SetDevice(newSpec(t, property("temp", "")))
	store.err = errors.New("disk full")
	changed := newDevice(property("temp", "30"))
	changed.Generation = 2
	twins.SetDevice(devicetwin.NewSpec(changed, newModel()))
	update(t, twins, "22", 6)
	if _, _, err := twins.Commit(t.Context()); !errors.Is(err, store.err) {
		t.Fatalf("commit: %v", err)
	}
	checkReported(t, twins, "21")
	twin, err := twins.Get(deviceID)
	if err != nil || devicetwin.Delta(twin.Spec, twin.Record)["temp"] != "30" {
		t.Errorf("the desired value of Kubernetes went with it: %+v, %v", twin.Record, err)
	}
	store.err = nil
	commit(t, twins)
	twins = open(t, store)
	twins.SetDevice(devicetwin.NewSpec(changed, newModel()))
	checkReported(t, twins, "21")

	twins.RemoveDevice(deviceID)
	store.err = errors.New("disk full")
	if _, _, err := twins.Commit(t.Context()); err == nil {
		t.Fatal("commit succeeded")
	}
	store.err = nil
	commit(t, twins)
	if len(store.records) != 0 {
		t.Errorf("the record of a removed device stays: %v", store.records)
	}
}

func TestTwins_RemoveOrphans(t *testing.T) {
	store := newStore()
	twins := open(t, store)
	twins.SetDevice(newSpec(t, property("temp", "")))
	other := newDevice(property("temp", ""))
	other.Name = "t2"
	twins.SetDevice(devicetwin.NewSpec(other, nil))
	commit(t, twins)

	store.records[types.NamespacedName{Name: "rotten"}] = []byte("{")
	twins = devicetwin.NewTwins(store, func() time.Time { return now })
	if err := twins.Load(t.Context()); !errors.Is(err, devicetwin.ErrDamaged) || !strings.Contains(err.Error(), "rotten") {
		t.Errorf("a damaged record: %v", err)
	}
	twins.SetDevice(newSpec(t, property("temp", "")))
	twins.RemoveOrphans()
	commit(t, twins)
	if _, ok := store.records[deviceID]; !ok || len(store.records) != 2 { // the damaged one is replaced when its device reports
		t.Errorf("records are left of %v", store.records)
	}
}

func TestTwins_RecordIsBounded(t *testing.T) {
	var properties []devices.DeviceProperty
	for i := range 100 {
		properties = append(properties, property(fmt.Sprintf("p%02d", i), ""))
	}
	twins := open(t, newStore())
	twins.SetDevice(devicetwin.NewSpec(newDevice(properties...), nil))
	var refusal *devicetwin.Refusal
	var err error
	for i := 0; i < len(properties) && err == nil; i++ {
		_, _, err = twins.Update(deviceID, devicetwin.Update{Properties: actual(properties[i].Name, strings.Repeat("x", 4096))}, devicetwin.Reception{Time: now})
	}
	if !errors.As(err, &refusal) || refusal.Reason != devicetwin.ReasonTooLarge {
		t.Errorf("100 values of 4 KiB: %v", err)
	}
}
