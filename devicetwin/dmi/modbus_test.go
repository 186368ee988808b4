package dmi_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin/dmi"
	"github.com/frond-edge/frond/test/kit/mappertest"
)

// raw is a configData as a user writes it.
func raw(text string) *runtime.RawExtension { return &runtime.RawExtension{Raw: []byte(text)} }

// pumpModel and pump are a device behind Modbus, as KubeEdge's users have it.
func pumpModel() *devices.DeviceModel {
	return &devices.DeviceModel{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "m"},
		Spec: devices.DeviceModelSpec{Protocol: "modbus", Properties: []devices.ModelProperty{
			{Name: "reading", Type: "INT", AccessMode: "ReadOnly"},
			{Name: "setpoint", Type: "INT", AccessMode: "ReadWrite"},
			{Name: "valve", Type: "BOOLEAN", AccessMode: "ReadWrite"},
		}},
	}
}

func pump(address, setpoint, valve string) *devices.Device {
	property := func(name, desired, visitors string) devices.DeviceProperty {
		p := devices.DeviceProperty{
			Name: name, ReportToCloud: true, CollectCycle: 20,
			Visitors: devices.ProtocolConfig{ProtocolName: "modbus", ConfigData: raw(visitors)},
		}
		if desired != "" {
			p.Desired = &devices.TwinProperty{Value: desired}
		}
		return p
	}
	return &devices.Device{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "pump"},
		Spec: devices.DeviceSpec{
			DeviceModelRef: &corev1.LocalObjectReference{Name: "m"},
			Protocol:       devices.ProtocolConfig{ProtocolName: "modbus", ConfigData: raw(`{"address":"` + address + `","slaveID":7}`)},
			Properties: []devices.DeviceProperty{
				property("reading", "", `{"register":"HoldingRegister","offset":0}`),
				property("setpoint", setpoint, `{"register":"HoldingRegister","offset":3}`),
				property("valve", valve, `{"register":"CoilRegister","offset":2}`),
			},
		},
	}
}

// TestFramework_Modbus: a mapper of KubeEdge's framework reads registers of a device behind Modbus TCP, and writes what is desired into a register and
// a coil, also after the device was away.
func TestFramework_Modbus(t *testing.T) {
	address, simulator := mappertest.StartSimulator(t, filepath.Join("..", ".."))
	g := newGateway(t)
	g.config = func(c *dmi.Config) { c.Settle = 300 * time.Millisecond }
	g.models["default/m"] = pumpModel()
	g.devices["default/pump"] = pump(address, "60", "false")
	g.start()
	m := mappertest.Run(t, mappertest.Build(t, filepath.Join("..", "..")), mappertest.WriteProtocolConfig(t, g.dir, "modbus"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.Output())
		}
	})
	reads := func(want map[string]string) {
		t.Helper()
		eventually(t, "the mapper reports what the device has", func() bool {
			g.twin.mu.Lock()
			defer g.twin.mu.Unlock()
			for property, value := range want {
				if p := g.twin.values["default/pump/"+property]; p.Actual == nil || *p.Actual != value {
					return false
				}
			}
			return true
		})
	}
	reads(map[string]string{"setpoint": "60", "valve": "false"})
	g.server.SetDevice(pump(address, "70", "true"))
	reads(map[string]string{"setpoint": "70", "valve": "true"})
	for _, write := range []string{"unit 7: holding register 3 = 60\n", "unit 7: holding register 3 = 70\n", "unit 7: coil 2 = true\n"} {
		if !strings.Contains(simulator.Output(), write) {
			t.Errorf("the device was not told %q", write)
		}
	}
	eventually(t, "readings that differ", func() bool { return strings.Count(m.Output(), "answered default/pump reading ") > 5 })
	g.server.SetDevice(pump("127.0.0.1:1", "75", "true")) // nothing is there
	eventually(t, "the mapper cannot reach the device", func() bool { return strings.Contains(m.Output(), "write: ") })
	g.server.SetDevice(pump(address, "80", "false"))
	reads(map[string]string{"setpoint": "80", "valve": "false"})
}
