package dmi_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/frond-edge/frond/devicetwin/dmi"
	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
	"github.com/frond-edge/frond/devicetwin/dmi/mapper"
)

// TestServer_MapperFollowsDevices: a mapper gets its devices when it registers, and each change afterwards; not those of other protocols.
func TestServer_MapperFollowsDevices(t *testing.T) {
	g := newGateway(t)
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.setDevice("default/b", "opcua", "1")
	g.start()
	m := startMapper(t, g.dir, "modbus")
	if ids := m.ids(); !slices.Equal(ids, []string{"default/a"}) {
		t.Fatalf("registration brought %v", ids)
	}
	g.setDevice("default/a", "modbus", "2")
	eventually(t, "the changed value", func() bool { return m.desired("default/a") == "2" })
	eventually(t, "the delivery", func() bool { return g.twin.reason("default/a") == mapper.ReasonDelivered })
	g.setDevice("default/c", "modbus", "3")
	eventually(t, "the new device", func() bool { return m.desired("default/c") == "3" })
	g.removeDevice("default/a")
	eventually(t, "the removal", func() bool { return m.desired("default/a") == "-" })
	g.setDevice("default/c", "opcua", "3")
	eventually(t, "the device of another protocol now", func() bool { return len(m.ids()) == 0 })
	if keys := g.store.keys(); !slices.Equal(keys, []string{"mapper/modbus"}) {
		eventually(t, "no record of devices", func() bool { return slices.Equal(g.store.keys(), []string{"mapper/modbus"}) })
	}
}

// TestServer_RestartsInAnyOrder: whatever restarts first, what changed meanwhile arrives, nothing else is restarted, and no mapper ends.
func TestServer_RestartsInAnyOrder(t *testing.T) {
	changes := func(g *gateway) {
		g.setDevice("default/changed", "modbus", "2")
		g.removeDevice("default/removed")
		g.setDevice("default/new", "modbus", "1")
	}
	for name, scenario := range map[string]func(g *gateway, m *testMapper){
		"mapper": func(g *gateway, m *testMapper) {
			m.kill()
			changes(g)
			m.restart()
		},
		"edgecore": func(g *gateway, _ *testMapper) {
			g.stop()
			g.server = nil
			changes(g)
			g.start()
		},
		"both, edgecore first": func(g *gateway, m *testMapper) {
			m.kill()
			g.stop()
			g.server = nil
			changes(g)
			g.start()
			m.restart()
		},
		"edgecore while the mapper is away": func(g *gateway, m *testMapper) {
			m.kill()
			changes(g)
			g.stop()
			g.server = nil
			g.start()
			m.restart()
		},
		"edgecore twice": func(g *gateway, _ *testMapper) {
			g.stop()
			g.server = nil
			g.start()
			changes(g)
			g.stop()
			g.server = nil
			g.start()
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t)
			g.setModel("default/m")
			for _, id := range []string{"default/changed", "default/removed", "default/same"} {
				g.setDevice(id, "modbus", "1")
			}
			g.start()
			m := startMapper(t, g.dir, "modbus")
			eventually(t, "all devices", func() bool { return len(m.ids()) == 3 })
			m.set(func() { clear(m.updates) })
			scenario(g, m)
			eventually(t, "the new state", func() bool {
				return slices.Equal(m.ids(), []string{"default/changed", "default/new", "default/same"}) && m.desired("default/changed") == "2"
			})
			if n := m.starts("default/same"); name[0] == 'e' && name != "edgecore while the mapper is away" && n != 0 {
				t.Errorf("the unchanged device was started %d times", n)
			}
		})
	}
}

// TestServer_NothingIsRemovedBeforeSync: after a restart edgecore does not take a Device that has not been read yet for one that is gone.
func TestServer_NothingIsRemovedBeforeSync(t *testing.T) {
	g := newGateway(t)
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.setDevice("default/gone", "modbus", "1")
	g.start()
	m := startMapper(t, g.dir, "modbus")
	g.stop()
	g.unsynced = true
	g.start()
	g.setModel("default/m")
	g.setDevice("default/new", "modbus", "1")
	eventually(t, "the new device", func() bool { return m.desired("default/new") == "1" })
	g.setDevice("default/new", "modbus", "2") // after a whole pause between changes
	eventually(t, "the new device's value", func() bool { return m.desired("default/new") == "2" })
	if ids := m.ids(); len(ids) != 3 {
		t.Errorf("before all Devices are known the mapper has %v", ids)
	}
	g.removeDevice("default/gone")
	g.sync()
	eventually(t, "the removal", func() bool { return slices.Equal(m.ids(), []string{"default/a", "default/new"}) })
	if n := m.starts("default/a"); n != 1 {
		t.Errorf("the unchanged device was started %d times", n)
	}
}

// TestServer_KilledDuringACall: a device that was created by a call which edgecore did not live to note, and which is gone at the next start, leaves the
// mapper.
func TestServer_KilledDuringACall(t *testing.T) {
	g := newGateway(t)
	g.config = func(c *dmi.Config) { c.CallTimeout = time.Minute }
	g.setModel("default/m")
	g.start()
	m := startMapper(t, g.dir, "modbus")
	g.setDevice("default/z", "modbus", "1") // brings the model
	eventually(t, "the first device", func() bool { return m.desired("default/z") == "1" })
	m.set(func() { m.hang = make(chan struct{}) })
	g.setDevice("default/a", "modbus", "1")
	eventually(t, "the record before the answer", func() bool { return slices.Contains(g.store.keys(), "device/modbus/default/a") })
	g.stop()
	g.server = nil
	eventually(t, "the device in the mapper", func() bool { return m.desired("default/a") == "1" })
	m.set(func() { m.hang = nil })
	g.removeDevice("default/a")
	g.start()
	eventually(t, "the removal", func() bool { return slices.Equal(m.ids(), []string{"default/z"}) })
}

// TestServer_RegistersAgain: a process that registers a second time may have kept a device that is not in the answer.
func TestServer_RegistersAgain(t *testing.T) {
	g := newGateway(t)
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.start()
	m := startMapper(t, g.dir, "modbus")
	hang := make(chan struct{})
	m.set(func() { m.hang = hang })
	g.removeDevice("default/a")
	g.setDevice("default/b", "modbus", "1")
	if err := m.register(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.set(func() { m.hang = nil })
	close(hang)
	eventually(t, "the removal", func() bool { return slices.Equal(m.ids(), []string{"default/b"}) })
}

// TestServer_HungMapperDelaysNobody: while one mapper hangs, another one gets its changes; and the first gets its own when it goes on.
func TestServer_HungMapperDelaysNobody(t *testing.T) {
	g := newGateway(t)
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.setDevice("default/b", "opcua", "1")
	g.start()
	hung, other := startMapper(t, g.dir, "modbus"), startMapper(t, g.dir, "opcua")
	hang := make(chan struct{})
	hung.set(func() { hung.hang = hang })
	g.setDevice("default/a", "modbus", "2")
	for _, value := range []string{"2", "3", "4"} {
		g.setDevice("default/b", "opcua", value)
		began := time.Now()
		eventually(t, "the other mapper's value", func() bool { return other.desired("default/b") == value })
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the other mapper got its change after %v", took)
		}
	}
	g.removeDevice("default/a")
	g.setDevice("default/a2", "modbus", "5")
	hung.set(func() { hung.hang = nil })
	close(hang)
	eventually(t, "the state after the hang", func() bool { return slices.Equal(hung.ids(), []string{"default/a2"}) })
}

// TestServer_StuckDriver: calls do not pile up in a mapper whose driver is stuck, to be carried out all at once when it goes on.
func TestServer_StuckDriver(t *testing.T) {
	g := newGateway(t)
	g.config = func(c *dmi.Config) { c.CallTimeout = 150 * time.Millisecond }
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.start()
	m := startMapper(t, g.dir, "modbus")
	stuck := make(chan struct{})
	m.set(func() { m.stuck = stuck })
	g.setDevice("default/a", "modbus", "2")
	eventually(t, "that the mapper cannot be reached", func() bool { return g.twin.reason("default/a") == mapper.ReasonMapperUnreachable })
	g.setDevice("default/a", "modbus", "3")
	m.set(func() { m.stuck = nil })
	close(stuck)
	eventually(t, "the last value", func() bool {
		return m.desired("default/a") == "3" && g.twin.reason("default/a") == mapper.ReasonDelivered
	})
}

// TestServer_RefusedAndGarbage: a mapper that refuses a device, or whose socket speaks something else, is asked again; its devices say so.
func TestServer_RefusedAndGarbage(t *testing.T) {
	g := newGateway(t)
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.start()
	m := startMapper(t, g.dir, "modbus")
	m.set(func() { m.refuse = errors.New("the port is in use") })
	g.setDevice("default/a", "modbus", "2")
	eventually(t, "the refusal", func() bool { return g.twin.reason("default/a") == mapper.ReasonMapperRefused })
	m.set(func() { m.refuse = nil })
	eventually(t, "the value after the refusal", func() bool { return m.desired("default/a") == "2" })
	m.kill()
	if err := os.Remove(m.address()); err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", m.address())
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\n\r\nhello"))
			_ = conn.Close()
		}
	}()
	g.setDevice("default/a", "modbus", "3")
	eventually(t, "that the mapper cannot be reached", func() bool { return g.twin.reason("default/a") == mapper.ReasonMapperUnreachable })
	_ = listener.Close()
	<-ended
	m.restart()
	eventually(t, "the value after the garbage", func() bool { return m.desired("default/a") == "3" })
	eventually(t, "the delivery", func() bool { return g.twin.reason("default/a") == mapper.ReasonDelivered })
}

// TestServer_ModelComesLater: a device waits for its model, and two models of one name do not mix.
func TestServer_ModelComesLater(t *testing.T) {
	g := newGateway(t)
	g.setDevice("default/a", "modbus", "1")
	g.setDevice("other/a", "modbus", "1")
	g.start()
	m := startMapper(t, g.dir, "modbus")
	eventually(t, "the missing model", func() bool { return g.twin.reason("default/a") == mapper.ReasonModelMissing })
	g.setModel("default/m")
	g.setModel("other/m")
	eventually(t, "both devices", func() bool { return slices.Equal(m.ids(), []string{"default/a", "other/a"}) })
	m.kill()
	g.models["other/m"].Spec.Properties[0].Type = "STRING"
	m.restart()
	eventually(t, "both devices again", func() bool { return slices.Equal(m.ids(), []string{"default/a", "other/a"}) })
	starts := m.starts("default/a")
	g.setModel("default/m")
	g.server.RemoveModel(idOf("default/m"))
	g.removeDevice("other/a")
	eventually(t, "the removal", func() bool { return slices.Equal(m.ids(), []string{"default/a"}) })
	if m.starts("default/a") != starts {
		t.Error("a device whose model is gone was started again")
	}
}

// TestServer_FullDisk: mappers register and get their devices while nothing can be stored, and a store that hangs does not hold them up.
func TestServer_FullDisk(t *testing.T) {
	g := newGateway(t)
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.start()
	g.store.mu.Lock()
	g.store.block = true
	g.store.mu.Unlock()
	m := startMapper(t, g.dir, "modbus")
	if m.desired("default/a") != "1" {
		t.Error("the registration brought nothing")
	}
	g.setDevice("default/a", "modbus", "2")
	eventually(t, "the changed value", func() bool { return m.desired("default/a") == "2" })
	g.store.mu.Lock()
	g.store.block = false
	g.store.mu.Unlock()
	g.setDevice("default/a", "modbus", "3")
	eventually(t, "the records", func() bool { return slices.Equal(g.store.keys(), []string{"device/modbus/default/a", "mapper/modbus"}) })
}

// TestServer_Reports takes values and states, with the device's time if there is one, and refuses what makes no sense with a clear code.
func TestServer_Reports(t *testing.T) {
	g := newGateway(t)
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.start()
	client, conn := dialManager(t, g.dir)
	defer conn.Close() //nolint:errcheck // nothing was written
	value := func(device string, twins ...*dmipb.Twin) codes.Code {
		_, err := client.ReportDeviceStatus(t.Context(), &dmipb.ReportDeviceStatusRequest{
			DeviceNamespace: "default", DeviceName: device, ReportedDevice: &dmipb.DeviceStatus{Twins: twins},
		})
		return status.Code(err)
	}
	if code := value("a", &dmipb.Twin{
		PropertyName: "p", Reported: &dmipb.TwinProperty{Value: "21", Metadata: map[string]string{"timestamp": "1795417712301", "type": "int"}},
		ObservedDesired: &dmipb.TwinProperty{Value: "1", Metadata: map[string]string{"timestamp": ""}},
	}); code != codes.OK {
		t.Errorf("a value: %v", code)
	}
	p := g.twin.values["default/a/p"]
	if *p.Actual != "21" || p.ActualTime != 1795417712301 || p.Type != "int" || *p.Expected != "1" || p.ExpectedTime != 0 {
		t.Errorf("reported %+v", p)
	}
	for name, code := range map[string]codes.Code{
		"no twins":       value("a"),
		"an empty twin":  value("a", nil, &dmipb.Twin{}),
		"unknown device": value("ghost", &dmipb.Twin{PropertyName: "p"}),
	} {
		if code != codes.OK {
			t.Errorf("%s: %v", name, code)
		}
	}
	if _, err := client.ReportDeviceStatus(t.Context(), &dmipb.ReportDeviceStatusRequest{}); err != nil {
		t.Errorf("an empty request: %v", err)
	}
	if _, err := client.ReportDeviceStates(t.Context(), &dmipb.ReportDeviceStatesRequest{DeviceNamespace: "default", DeviceName: "a", State: "ok"}); err != nil || g.twin.states[idOf("default/a")] != "ok" {
		t.Errorf("state %q: %v", g.twin.states[idOf("default/a")], err)
	}
	if code := value("a", &dmipb.Twin{PropertyName: string(make([]byte, 300<<10))}); code != codes.ResourceExhausted {
		t.Errorf("300 KiB: %v", code)
	}
	g.twin.err = errors.New("disk full")
	if code := value("a", &dmipb.Twin{PropertyName: "p"}); code != codes.Unavailable {
		t.Errorf("a store that fails: %v", code)
	}
	for name, info := range map[string]*dmipb.MapperInfo{
		"no mapper":          nil,
		"no protocol":        {Address: []byte(filepath.Join(g.dir, "x.sock"))},
		"another folder":     {Protocol: "x", Address: []byte("/run/containerd/containerd.sock")},
		"above the folder":   {Protocol: "x", Address: []byte(g.dir + "/../x.sock")},
		"edgecore's socket":  {Protocol: "x", Address: []byte(filepath.Join(g.dir, "dmi.sock"))},
		"no address":         {Protocol: "x"},
		"a folder below":     {Protocol: "x", Address: []byte(g.dir + "/a/x.sock")},
		"an address of dots": {Protocol: "x", Address: []byte(g.dir + "/..")},
	} {
		if _, err := client.MapperRegister(t.Context(), &dmipb.MapperRegisterRequest{Mapper: info}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	var raw []byte
	if err := conn.Invoke(t.Context(), "/v1beta1.DeviceManagerService/Nonsense", &dmipb.Device{}, &dmipb.Device{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("an unknown call: %v, %d bytes", err, len(raw))
	}
}

// TestServer_ManyConnections: as many reports at once as a mapper with 500 properties makes when edgecore comes back, each with a connection of its
// own and one second to succeed.
func TestServer_ManyConnections(t *testing.T) {
	g := newGateway(t)
	registry := prometheus.NewRegistry()
	g.config = func(c *dmi.Config) { c.Registerer = registry }
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.start()
	const properties = 500
	failed := make(chan error, properties)
	for range properties {
		go func() { failed <- reportOnce(t.Context(), g.dir) }()
	}
	for range properties {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if g.twin.reports != properties {
		t.Errorf("%d reports arrived", g.twin.reports)
	}
	if n, err := testutil.GatherAndCount(registry, "frond_dmi_refused_total"); err != nil || n != 0 {
		t.Errorf("something was refused: %d, %v", n, err)
	}
}

// reportOnce is one report of KubeEdge's framework: a connection, and then the call. The framework gives it one second, which 500 calls at once need not
// have on a machine that does other things, too: BenchmarkReport measures that.
func reportOnce(ctx context.Context, dir string) error {
	conn, err := grpc.NewClient("unix://"+filepath.Join(dir, "dmi.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing was written
	conn.Connect()
	for state := conn.GetState(); state.String() != "READY"; state = conn.GetState() {
		if !conn.WaitForStateChange(ctx, state) {
			return ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, err = dmipb.NewDeviceManagerServiceClient(conn).ReportDeviceStatus(ctx, &dmipb.ReportDeviceStatusRequest{
		DeviceNamespace: "default", DeviceName: "a", ReportedDevice: &dmipb.DeviceStatus{Twins: []*dmipb.Twin{{
			PropertyName: "p", Reported: &dmipb.TwinProperty{Value: "21", Metadata: map[string]string{"timestamp": "", "type": "int"}},
			ObservedDesired: &dmipb.TwinProperty{Value: "1", Metadata: map[string]string{"timestamp": "", "type": "int"}},
		}}},
	})
	return err
}

// BenchmarkReport is the rate of reports of one mapper that makes a connection for each.
func BenchmarkReport(b *testing.B) {
	g := newGateway(b)
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "1")
	g.start()
	var took []time.Duration
	for b.Loop() {
		began := time.Now()
		if err := reportOnce(b.Context(), g.dir); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "reports/s")
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkDesired is the time from a changed Device to the mapper's call, over a pause between changes that is short.
func BenchmarkDesired(b *testing.B) {
	g := newGateway(b)
	g.config = func(c *dmi.Config) { c.Settle = time.Millisecond }
	g.setModel("default/m")
	g.setDevice("default/a", "modbus", "0")
	g.start()
	m := startMapper(b, g.dir, "modbus")
	var took []time.Duration
	for i := 1; b.Loop(); i++ {
		value, began := strconv.Itoa(i), time.Now()
		m.set(func() { m.changed = map[string]time.Time{} })
		g.setDevice("default/a", "modbus", value)
		for m.desired("default/a") != value {
			<-m.updated
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// TestConfig_Validate returns each fault.
func TestConfig_Validate(t *testing.T) {
	if err := (dmi.Config{}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (dmi.Config{Dir: "relative"}).Validate(); err == nil {
		t.Error("a relative folder is accepted")
	}
	if err := (dmi.Config{Settle: -1}).Validate(); err == nil {
		t.Error("a time below 0 is accepted")
	}
}
