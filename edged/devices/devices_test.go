package devices_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/config"
	kinds "github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/devices"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/mappertest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// outbox records the reports of devices.
type outbox struct {
	mu   sync.Mutex
	sent []wire.Message // guarded by mu
	err  error          // guarded by mu
	// refused counts the reports that failed; guarded by mu.
	refused int
}

func (o *outbox) Report(_ context.Context, m wire.Message) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		o.refused++
		return o.err
	}
	o.sent = append(o.sent, m)
	return nil
}

func (o *outbox) fail(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

// reports returns the reports of a device.
func (o *outbox) reports(name string) (all []wire.Message) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range o.sent {
		if m.Key.Name == name {
			all = append(all, m)
		}
	}
	return all
}

// last returns the last report of a device.
func (o *outbox) last(name string) string {
	if all := o.reports(name); len(all) > 0 {
		return string(all[len(all)-1].Object)
	}
	return ""
}

// gateway is a gateway's leaf with its store, and the part for devices.
type gateway struct {
	*testing.T
	nc      *nats.Conn
	store   *store.Store
	outbox  *outbox
	link    *streamstest.SwitchableLink
	dir     string
	address string
	metrics *prometheus.Registry
	applied uint64
	api     http.Handler
	// low: the disk has room for control state only.
	low  atomic.Bool
	part *devices.Devices
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	g := &gateway{T: t, outbox: &outbox{}, link: streamstest.NewSwitchableLink(), dir: t.TempDir(), address: freeAddress(t)}
	g.nc = leaftest.StartLeaf(t, leaf.Config{}).Client()
	js, err := jetstream.New(g.nc)
	kit.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	g.store, err = store.Open(ctx, js, store.Config{}, zaptest.NewLogger(t))
	kit.Must(t, err)
	return g
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // an address, nothing to wait for
	kit.Must(t, err)
	defer func() { kit.Must(t, l.Close()) }()
	return l.Addr().String()
}

// start starts the part for devices.
func (g *gateway) start(change func(*config.Devices)) (stop func()) {
	g.Helper()
	settings := config.Devices{
		MQTT:      config.MQTT{Mode: config.MQTTInternal, Listen: g.address, AllowLoopbackAnonymous: true},
		Telemetry: config.Telemetry{MaxMiB: 16, MaxAge: config.Duration(time.Hour)},
	}
	if change != nil {
		change(&settings)
	}
	g.metrics = prometheus.NewRegistry()
	part, err := devices.New(devices.Config{
		Node: "edge-1", Dir: g.dir, Settings: settings, Local: g.nc, Cloud: g.nc, Link: g.link, Store: g.store, Reports: g.outbox, Metrics: g.metrics, LowSpace: g.low.Load,
	}, zaptest.NewLogger(g))
	kit.Must(g, err)
	g.api, g.part = part.Handler(), part
	return streamstest.StartPart(g.T, part.Start)
}

// apply gives the gateway an object as the cloud does; "" deletes it.
func (g *gateway) apply(resource, name, object string) {
	g.Helper()
	g.applied++
	m := wire.Message{
		Key: wire.Key{Group: kinds.Group, Resource: resource, Namespace: "default", Name: name}, Op: wire.Apply, UID: "u-" + name,
		Version: fmt.Sprint(g.applied), Sequence: g.applied, Object: []byte(object),
	}
	if object == "" {
		m.Op, m.Object = wire.Delete, nil
	}
	kit.Must(g, g.store.Apply(g.Context(), []wire.Message{m}, g.applied))
}

// setDevice gives the gateway a Device with the property temp, of a node.
func (g *gateway) setDevice(name, node, desired string) {
	g.Helper()
	g.apply(kinds.DevicesResource, name, fmt.Sprintf(`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":%q,"namespace":"default","uid":"u-%s",
		"resourceVersion":"%d","generation":%d},"spec":{"nodeName":%q,"deviceModelRef":{"name":"model"},"properties":[{"name":"temp","desired":{"value":%q}}]}}`,
		name, name, g.applied+1, g.applied+1, node, desired))
}

func (g *gateway) setModel(kind string) {
	g.Helper()
	g.apply(kinds.DeviceModelsResource, "model", fmt.Sprintf(`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"DeviceModel","metadata":{"name":"model","namespace":"default",
		"uid":"u-model","resourceVersion":"%d"},"spec":{"properties":[{"name":"temp","type":%q,"accessMode":"ReadWrite"}]}}`, g.applied+1, kind))
}

// app connects an MQTT app.
func (g *gateway) app(change func(*paho.ClientOptions)) paho.Client {
	g.Helper()
	var client paho.Client
	kit.Succeeds(g, time.Minute, func() error {
		o := paho.NewClientOptions().AddBroker("tcp://" + g.address).SetClientID("app").SetAutoReconnect(false).SetConnectTimeout(5 * time.Second)
		if change != nil {
			change(o)
		}
		client = paho.NewClient(o)
		token := client.Connect()
		token.WaitTimeout(10 * time.Second)
		return token.Error()
	})
	g.Cleanup(func() { client.Disconnect(100) })
	return client
}

func (g *gateway) publish(app paho.Client, device, value string) {
	g.Helper()
	token := app.Publish("$hw/events/device/default/"+device+"/twin/update", 1, false, `{"event_id":"e","twin":{"temp":{"actual":{"value":"`+value+`"}}}}`)
	if !token.WaitTimeout(10 * time.Second) {
		g.Fatal("no PUBACK")
	}
	kit.Must(g, token.Error())
}

func (g *gateway) reported(device, part string) {
	g.Helper()
	kit.Within(g, time.Minute, fmt.Sprintf("%s is reported of %s", part, device), func() bool { return strings.Contains(g.outbox.last(device), part) })
}

// The Devices of the store that name this node have twins: with their models, in whatever order they come, as they change, and until they leave.
func TestDevices_FollowsTheStore(t *testing.T) {
	g := newGateway(t)
	g.setDevice("early", "edge-1", "20")
	g.setDevice("elsewhere", "edge-2", "20")
	g.start(nil)
	g.reported("early", `"Differs"`)
	app := g.app(nil)
	g.publish(app, "early", "twenty") // no model yet: each value fits
	g.reported("early", "twenty")
	g.setModel("INT")
	g.publish(app, "early", "21")
	g.reported("early", `"21"`)
	g.publish(app, "early", "thirty")
	g.setDevice("late", "edge-1", "5")
	g.reported("late", `"Differs"`)
	g.publish(app, "late", "5")
	g.reported("late", `"Reported"`)
	g.setDevice("late", "edge-1", "6")
	g.reported("late", `"Differs"`)
	g.reported("early", `property temp: the value thirty is not of the type INT`)
	if got := g.outbox.last("early"); strings.Contains(got, `"value":"thirty"`) || !strings.Contains(got, `"value":"21"`) {
		t.Errorf("a value that the model does not allow: %s", got)
	}
	if got := g.outbox.reports("elsewhere"); len(got) != 0 {
		t.Errorf("another node's device is reported: %v", got)
	}
	g.apply(kinds.DevicesResource, "late", "")
	g.setDevice("early", "edge-2", "20")
	n := len(g.outbox.reports("late")) + len(g.outbox.reports("early"))
	g.publish(app, "late", "7")
	g.publish(app, "early", "7")
	g.setDevice("last", "edge-1", "1")
	g.reported("last", `"Differs"`)
	if got := len(g.outbox.reports("late")) + len(g.outbox.reports("early")); got != n {
		t.Errorf("a device that has left is reported")
	}
}

// What devices have reported is known after a restart; a Device that left meanwhile is not.
func TestDevices_RemembersOverRestart(t *testing.T) {
	g := newGateway(t)
	g.setDevice("a", "edge-1", "1")
	g.setDevice("b", "edge-1", "1")
	stop := g.start(nil)
	app := g.app(nil)
	g.publish(app, "a", "41")
	g.publish(app, "b", "42")
	g.reported("a", `"41"`)
	g.reported("b", `"42"`)
	stop()
	g.apply(kinds.DevicesResource, "b", "")
	g.outbox.mu.Lock()
	g.outbox.sent = nil
	g.outbox.mu.Unlock()
	g.start(nil)
	g.reported("a", `"41"`)
	g.setDevice("b", "edge-1", "1")
	g.reported("b", `"Differs"`)
	if got := g.outbox.last("b"); strings.Contains(got, `"42"`) {
		t.Errorf("a device that was deleted and made again: %s", got)
	}
}

// A device that changes often is reported at most once a second, with its last value. A report that the disk refuses is made again.
func TestReporter_PacesAndRetries(t *testing.T) {
	g := newGateway(t)
	g.setDevice("a", "edge-1", "1")
	g.start(nil)
	app := g.app(nil)
	g.reported("a", `"Differs"`)
	began, before := time.Now(), len(g.outbox.reports("a"))
	for i := range 200 {
		g.publish(app, "a", fmt.Sprint(1000+i))
	}
	g.reported("a", `"1199"`)
	if n, most := len(g.outbox.reports("a"))-before, 2+int(time.Since(began)/time.Second); n > most {
		t.Errorf("%d reports in %s", n, time.Since(began))
	}
	g.outbox.fail(os.ErrDeadlineExceeded)
	g.publish(app, "a", "5")
	kit.Within(t, time.Minute, "a report has failed", func() bool {
		g.outbox.mu.Lock()
		defer g.outbox.mu.Unlock()
		return g.outbox.refused > 0
	})
	g.outbox.fail(nil)
	g.reported("a", `"5"`)
}

// When the link comes up all devices are reported again: the cloud has marked them as unknown.
func TestReporter_RepeatsWhenLinked(t *testing.T) {
	g := newGateway(t)
	for i := range 50 {
		g.setDevice(fmt.Sprint("d", i), "edge-1", "1")
	}
	g.start(nil)
	g.link.SetUp(false)
	for i := range 50 {
		g.reported(fmt.Sprint("d", i), `"Differs"`)
	}
	before := len(g.outbox.reports("d7"))
	g.link.SetUp(true)
	began := time.Now()
	for i := range 50 {
		kit.Within(t, time.Minute, "reported again", func() bool { return len(g.outbox.reports(fmt.Sprint("d", i))) > before })
	}
	if took := time.Since(began); took < 1500*time.Millisecond {
		t.Errorf("50 devices are reported in %s", took)
	}
}

// A port that another program has stops nothing else, and is tried again.
func TestDevices_WaitsForItsPort(t *testing.T) {
	g := newGateway(t)
	l, err := net.Listen("tcp", g.address) //nolint:noctx // an address, nothing to wait for
	kit.Must(t, err)
	g.setDevice("a", "edge-1", "1")
	g.start(nil)
	kit.Within(t, time.Minute, "it is counted", func() bool { return streamstest.SumCounters(t, g.metrics, "frond_mqtt_failures_total", "") > 0 })
	kit.Must(t, l.Close())
	g.publish(g.app(nil), "a", "7")
	g.reported("a", `"7"`)
	if !slices.Contains(names(t, g.metrics), "frond_telemetry_appended_total") {
		t.Error("the metrics of telemetry are missing")
	}
}

func names(t *testing.T, reg *prometheus.Registry) (list []string) {
	t.Helper()
	families, err := reg.Gather()
	kit.Must(t, err)
	for _, f := range families {
		list = append(list, f.GetName())
	}
	return list
}

// The users of the file may connect, with the rights that it says, and no others.
func TestDevices_Users(t *testing.T) {
	g := newGateway(t)
	file := filepath.Join(t.TempDir(), "users.yaml")
	hash := "$2a$04$" + bcryptOf(t, "secret")
	kit.Must(t, os.WriteFile(file, []byte("- {name: boiler, passwordHash: '"+hash+"', devices: [default/a]}\n"), 0o600))
	g.setDevice("a", "edge-1", "1")
	g.start(func(d *config.Devices) { d.MQTT.AllowLoopbackAnonymous, d.MQTT.UsersFile = false, file })
	app := g.app(func(o *paho.ClientOptions) { o.SetClientID("boiler").SetUsername("boiler").SetPassword("secret") })
	g.publish(app, "a", "9")
	g.reported("a", `"9"`)
	token := paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + g.address).SetClientID("other").SetAutoReconnect(false)).Connect()
	if token.WaitTimeout(10*time.Second) && token.Error() == nil {
		t.Error("an anonymous app is let in")
	}
}

func bcryptOf(t *testing.T, password string) string {
	t.Helper()
	hash, err := devices.Hash(password)
	kit.Must(t, err)
	return strings.TrimPrefix(hash, "$2a$04$")
}

// A file of users that cannot work is told with the file and the reason.
func TestNew_RefusesUsers(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"unknown key": {"- {name: a, password: b}", 0o600, "unknown field"}, "no list": {"name: a", 0o600, "cannot unmarshal"},
		"device": {"- {name: a, passwordHash: x, devices: [b]}", 0o600, "namespace/name"}, "plain password": {"- {name: a, passwordHash: b}", 0o600, "bcrypt"},
		"others may write": {"[]", 0o666, "chmod go-w"}, "large": {strings.Repeat("#", 2<<20), 0o600, "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, strings.ReplaceAll(name, " ", "-"))
			kit.Must(t, os.WriteFile(file, []byte(c.text), 0o600))
			kit.Must(t, os.Chmod(file, c.mode))
			_, err := devices.New(devices.Config{
				Node: "edge-1", Dir: dir, Metrics: prometheus.NewRegistry(),
				Settings: config.Devices{MQTT: config.MQTT{Mode: config.MQTTInternal, Listen: "127.0.0.1:0", UsersFile: file}},
			}, zaptest.NewLogger(t))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// A mapper of KubeEdge's framework drives a Device: it gets desired values, and what it reports is in the twin, in the report, and among the samples. A
// restart of the gateway's part needs no hand.
func TestDevices_Mapper(t *testing.T) {
	g := newGateway(t)
	dir, err := os.MkdirTemp("", "dmi") //nolint:usetesting // the path of a socket is short
	kit.Must(t, err)
	t.Cleanup(func() { kit.Must(t, os.RemoveAll(dir)) })
	withMappers := func(d *config.Devices) { d.DMI = config.DMI{Enabled: true, Dir: dir, AllowHost: true} }
	stop := g.start(withMappers)
	mappertest.Start(t, mappertest.Build(t, filepath.Join("..", "..")), mappertest.WriteConfig(t, dir))
	g.setModel("INT")
	g.setVirtual("a", "21")
	g.reported("a", `"type":"Delivered","status":"True"`)
	g.reported("a", `"reported":{"value":"21"`)
	g.reported("a", `"type":"Applied","status":"True"`)
	g.setVirtual("a", "22")
	g.reported("a", `"reported":{"value":"22"`)
	stop()
	g.setVirtual("a", "23")
	g.setVirtual("b", "5")
	g.start(withMappers)
	g.reported("a", `"reported":{"value":"23"`)
	g.reported("b", `"reported":{"value":"5"`)
	kit.Within(t, time.Minute, "samples are kept", func() bool { return streamstest.SumCounters(t, g.metrics, "frond_telemetry_appended_total", "") > 10 })
	if n := streamstest.SumCounters(t, g.metrics, "frond_dmi_refused_total", "storage"); n != 0 {
		t.Errorf("%v reports were refused", n)
	}
}

// setVirtual gives the gateway a Device of the mapper's protocol whose property is reported every 50 ms.
func (g *gateway) setVirtual(name, desired string) {
	g.Helper()
	g.apply(kinds.DevicesResource, name, fmt.Sprintf(`{"apiVersion":"devices.kubeedge.io/v1beta1","kind":"Device","metadata":{"name":%q,"namespace":"default","uid":"u-%s",
		"resourceVersion":"%d","generation":%d},"spec":{"nodeName":"edge-1","deviceModelRef":{"name":"model"},"protocol":{"protocolName":"virtual","configData":{"x":1}},
		"properties":[{"name":"temp","desired":{"value":%q},"reportToCloud":true,"collectCycle":50,"reportCycle":50,
		"visitors":{"protocolName":"virtual","configData":{"dataType":"int"}}}]}}`, name, name, g.applied+1, g.applied+1, desired))
}

// A mapper is let in as the settings say.
func TestAuthorizer(t *testing.T) {
	g := newGateway(t)
	pod := func(name, namespace, account string) {
		t.Helper()
		g.applied++
		kit.Must(t, g.store.Apply(t.Context(), []wire.Message{{
			Key: wire.Key{Resource: "pods", Namespace: namespace, Name: name}, Op: wire.Apply, UID: "u-" + name, Version: fmt.Sprint(g.applied), Sequence: g.applied,
			Object: fmt.Appendf(nil, `{"metadata":{"name":%q,"namespace":%q,"uid":"u-%s"},"spec":{"serviceAccountName":%q}}`, name, namespace, name, account),
		}}, g.applied))
	}
	pod("mapper", "plant", "modbus")
	pod("plain", "plant", "")
	pod("other", "office", "modbus")
	named := []config.Mapper{{Protocol: "modbus", Namespace: "plant", ServiceAccount: "modbus"}, {Protocol: "opcua", Namespace: "plant"}}
	for _, c := range []struct {
		pod, protocol string
		allowed       []config.Mapper
		want          bool
	}{
		{"u-mapper", "modbus", nil, true},
		{"u-none", "modbus", nil, false},
		{"", "modbus", nil, true},
		{"u-mapper", "modbus", named, true},
		{"u-mapper", "opcua", named, true},
		{"u-mapper", "ble", named, false},
		{"u-plain", "modbus", named, false},
		{"u-plain", "opcua", named, true},
		{"u-other", "modbus", named, false},
	} {
		if err := devices.Authorize(t.Context(), g.store, c.allowed, c.pod, c.protocol); (err == nil) != c.want {
			t.Errorf("pod %q for %s by %v: %v", c.pod, c.protocol, c.allowed, err)
		}
	}
}
