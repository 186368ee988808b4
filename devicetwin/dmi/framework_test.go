package dmi_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin/dmi"
	"github.com/frond-edge/frond/devicetwin/dmi/mapper"
	"github.com/frond-edge/frond/test/kit/mappertest"
)

// frameworkMapper is a process of a mapper on KubeEdge's published framework.
type frameworkMapper struct {
	t      *testing.T
	binary string
	config string
	log    string
	cmd    *exec.Cmd
	// ended has the error of the process.
	ended chan error
}

func newFrameworkMapper(t *testing.T, dir string) *frameworkMapper {
	t.Helper()
	m := &frameworkMapper{
		t: t, binary: mappertest.Build(t, filepath.Join("..", "..")), config: mappertest.WriteConfig(t, dir), log: filepath.Join(t.TempDir(), "log"),
	}
	t.Cleanup(func() {
		if m.cmd != nil {
			m.kill()
		}
	})
	return m
}

func (m *frameworkMapper) start() {
	m.t.Helper()
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	defer log.Close() //nolint:errcheck // the process has its own
	m.cmd = exec.CommandContext(context.WithoutCancel(m.t.Context()), m.binary, "--config-file", m.config, "--v", "1")
	m.cmd.Stdout, m.cmd.Stderr = log, log
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func(cmd *exec.Cmd) { ended <- cmd.Wait() }(m.cmd)
	m.ended = ended
}

// kill ends the process, and fails the test if it had ended before.
func (m *frameworkMapper) kill() {
	m.t.Helper()
	select {
	case err := <-m.ended:
		m.t.Errorf("the mapper ended by itself: %v\n%s", err, m.output())
	default:
		if err := m.cmd.Process.Kill(); err != nil {
			m.t.Error(err)
		}
		if err := <-m.ended; err == nil {
			m.t.Errorf("the mapper ended by itself\n%s", m.output())
		}
	}
	m.cmd = nil
}

func (m *frameworkMapper) signal(s os.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Fatal(err)
	}
}

func (m *frameworkMapper) output() string {
	raw, err := os.ReadFile(m.log)
	if err != nil {
		return err.Error()
	}
	return string(raw)
}

// virtualDevice is a Device of the mapper whose property p is reported every 20 ms.
func (g *gateway) virtualDevice(name, desired string, change func(d *devices.Device)) {
	g.setDevice(name, "virtual", desired)
	d := g.devices[name].DeepCopy()
	d.Spec.Properties[0].ReportToCloud, d.Spec.Properties[0].CollectCycle = true, 20
	if change != nil {
		change(d)
	}
	g.devices[name] = d
	if g.server != nil {
		g.server.SetDevice(d)
	}
}

// reports waits until the twin has a value that the mapper read back from the device.
func (g *gateway) reports(name, value string) {
	g.t.Helper()
	eventually(g.t, name+" reports "+value, func() bool {
		g.twin.mu.Lock()
		defer g.twin.mu.Unlock()
		p := g.twin.values[name+"/p"]
		return p.Actual != nil && *p.Actual == value && p.Expected != nil && *p.Expected == value && p.Type == "int"
	})
}

// TestFramework_Restarts: a mapper of KubeEdge's framework gets what changes, whatever restarts meanwhile, and never ends.
func TestFramework_Restarts(t *testing.T) {
	g := newGateway(t)
	g.config = func(c *dmi.Config) { c.Settle = 300 * time.Millisecond }
	m := newFrameworkMapper(t, g.dir)
	m.start() // before edgecore
	g.setModel("default/m")
	g.virtualDevice("default/a", "1", nil)
	g.virtualDevice("default/b", "1", nil)
	g.start()
	g.reports("default/a", "1")
	g.virtualDevice("default/a", "2", nil)
	g.reports("default/a", "2")
	restartEdgecore := func(meanwhile func()) {
		g.stop()
		g.server = nil
		meanwhile()
		g.start()
	}
	restartEdgecore(func() {
		g.virtualDevice("default/a", "3", nil)
		g.removeDevice("default/b")
		g.virtualDevice("default/c", "3", nil)
	})
	g.reports("default/a", "3")
	g.reports("default/c", "3")
	eventually(t, "the removal of b", func() bool { return strings.Contains(m.output(), "removed default/b") })
	m.kill()
	g.virtualDevice("default/a", "4", nil)
	g.removeDevice("default/c")
	m.start()
	g.reports("default/a", "4")
	m.kill()
	restartEdgecore(func() { g.virtualDevice("default/a", "5", nil) })
	g.virtualDevice("default/d", "5", nil)
	m.start()
	g.reports("default/a", "5")
	g.reports("default/d", "5")
	g.removeDevice("default/a")
	g.removeDevice("default/d")
	eventually(t, "no device", func() bool {
		return strings.Contains(m.output(), "removed default/a") && strings.Contains(m.output(), "removed default/d")
	})
	g.virtualDevice("default/a", "6", nil)
	g.reports("default/a", "6")
}

// TestFramework_Hangs: a mapper that stands still, and then goes on with what it had not answered, does not end of it.
func TestFramework_Hangs(t *testing.T) {
	g := newGateway(t)
	g.config = func(c *dmi.Config) { c.Settle = 300 * time.Millisecond }
	g.setModel("default/m")
	g.virtualDevice("default/a", "1", nil)
	g.virtualDevice("default/b", "1", nil)
	g.start()
	m := newFrameworkMapper(t, g.dir)
	m.start()
	g.reports("default/a", "1")
	g.virtualDevice("default/a", "2", nil)
	g.reports("default/a", "2")
	m.signal(syscall.SIGSTOP)
	g.virtualDevice("default/a", "3", nil)
	g.removeDevice("default/b")
	eventually(t, "that the mapper cannot be reached", func() bool { return g.twin.reason("default/a") == mapper.ReasonMapperUnreachable })
	m.signal(syscall.SIGCONT)
	g.reports("default/a", "3")
	eventually(t, "the removal of b", func() bool { return strings.Contains(m.output(), "removed default/b") })
}

// TestFramework_Traps: Devices that end such a mapper when they are sent as they stand.
func TestFramework_Traps(t *testing.T) {
	traps := map[string]func(d *devices.Device){
		"no-desired": func(d *devices.Device) { d.Spec.Properties[0].Desired = nil },
		"wrong-type": func(d *devices.Device) { d.Spec.Properties[0].Desired = &devices.TwinProperty{Value: "x"} },
		"not-modeled": func(d *devices.Device) {
			d.Spec.Properties = append(d.Spec.Properties, devices.DeviceProperty{Name: "other"})
		},
		"nested": func(d *devices.Device) {
			d.Spec.Protocol.ConfigData = &runtime.RawExtension{Raw: []byte(`{"tcp":{"port":502},"list":[1,null],"none":null}`)}
		},
		"no-object": func(d *devices.Device) { d.Spec.Protocol.ConfigData = &runtime.RawExtension{Raw: []byte(`[]`)} },
		"no-model":  func(d *devices.Device) { d.Spec.DeviceModelRef = nil },
		"database": func(d *devices.Device) {
			d.Spec.Properties[0].PushMethod = &devices.PushMethod{DBMethod: &devices.DBMethodConfig{MySQL: &devices.DBMethodMySQL{}}}
		},
	}
	for _, when := range []string{"registration", "calls"} {
		t.Run(when, func(t *testing.T) {
			g := newGateway(t)
			g.config = func(c *dmi.Config) { c.Settle = 300 * time.Millisecond }
			g.setModel("default/m")
			g.virtualDevice("default/good", "1", nil)
			g.start()
			m := newFrameworkMapper(t, g.dir)
			if when == "calls" {
				m.start()
				g.reports("default/good", "1")
			}
			for name, change := range traps {
				g.virtualDevice("default/"+name, "1", change)
			}
			if when == "registration" {
				m.start()
			}
			for name := range traps {
				want := mapper.ReasonDelivered
				if name == "no-model" {
					want = mapper.ReasonModelMissing
				}
				eventually(t, name+" is "+want, func() bool { return g.twin.reason("default/"+name) == want })
			}
			g.reports("default/nested", "1")
			for name := range traps {
				g.removeDevice("default/" + name)
			}
			g.virtualDevice("default/good", "2", nil)
			g.reports("default/good", "2")
		})
	}
}

// TestFramework_Rate: 20 properties, each reported 100 times a second with a connection of its own. None is refused.
func TestFramework_Rate(t *testing.T) {
	g := newGateway(t)
	g.setModel("default/m")
	g.start()
	m := newFrameworkMapper(t, g.dir)
	m.start()
	for i := range 20 {
		g.virtualDevice(fmt.Sprintf("default/d%d", i), "1", func(d *devices.Device) { d.Spec.Properties[0].CollectCycle = 10 })
	}
	eventually(t, "a first report of each", func() bool {
		g.twin.mu.Lock()
		defer g.twin.mu.Unlock()
		return len(g.twin.values) == 20
	})
	g.twin.mu.Lock()
	before, began := g.twin.reports, time.Now()
	g.twin.mu.Unlock()
	eventually(t, "2,000 reports", func() bool {
		g.twin.mu.Lock()
		defer g.twin.mu.Unlock()
		return g.twin.reports >= before+2000
	})
	t.Logf("%.0f reports a second", 2000/time.Since(began).Seconds())
	if strings.Contains(m.output(), "report ") {
		t.Errorf("the mapper's reports were refused:\n%s", m.output())
	}
}
