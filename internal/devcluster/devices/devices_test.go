package devices_test

import (
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/devices"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/gateway"
	"github.com/frond-edge/frond/test/kit"
)

// TestDevices_BadRequests: nothing is made for a device that cannot be.
func TestDevices_BadRequests(t *testing.T) {
	f, err := folder.New(t.TempDir(), nil)
	kit.Must(t, err)
	f.State.Spec = folder.Spec{Edges: 1}
	kit.Must(t, f.Save())
	d := devices.New(f, gateway.NewAPI(f))
	good := devices.Device{Namespace: "default", Name: "boiler", Edge: "edge-1", Interval: time.Second}
	for want, change := range map[string]func(*devices.Device){
		`namespace "a.b"`:    func(v *devices.Device) { v.Namespace = "a.b" },
		`name "../x"`:        func(v *devices.Device) { v.Name = "../x" },
		`name ""`:            func(v *devices.Device) { v.Name = "" },
		"choose at least":    func(v *devices.Device) { v.Interval = time.Millisecond },
		"is no gateway":      func(v *devices.Device) { v.Edge = "edge-2" },
		"frond dev up":       func(*devices.Device) {}, // the cluster has no brokers
		"interval 0s: choos": func(v *devices.Device) { v.Interval = 0 },
	} {
		v := good
		change(&v)
		if err := d.StartDevice(t.Context(), v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: got %v, want %q", v, err, want)
		}
	}
	if _, err := d.StopDevice(t.Context(), "default", "boiler"); err == nil || !strings.Contains(err.Error(), "no such virtual device") {
		t.Errorf("stop: %v", err)
	}
	if list, err := d.ListDevices(); err != nil || len(list) != 0 {
		t.Errorf("the devices are %v, %v", list, err)
	}
}
