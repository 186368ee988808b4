package devices_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/edged/devices"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/telemetry"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/faultfs"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// cutDevices is the number of devices, each with an app of its own.
const cutDevices = 4

// poweredGateway is a gateway with its whole disk on a file system whose power can be cut, linked to a hub.
type poweredGateway struct {
	*gateway
	disk *faultfs.FS
	stop func()
}

// leafLink is a leaf's link as a pump wants it.
type leafLink struct{ *leaf.Server }

func (l leafLink) State() (bool, <-chan struct{}) {
	state, changed := l.WatchLink()
	return state.Up, changed
}

// startCloud starts a hub with the part of a cloudcore that takes samples.
func startCloud(t *testing.T) (*leaftest.Hub, jetstream.JetStream) {
	t.Helper()
	hub := leaftest.NewHub(t)
	nc := hub.Conn()
	js, err := jetstream.New(nc)
	kit.Must(t, err)
	kit.Must(t, topology.Ensure(t.Context(), js, topology.HubTopology(1, subject.Layout{})))
	log, common := zaptest.NewLogger(t), metrics.New(nil)
	assigned := func(context.Context, string, string, string) (bool, error) { return true, nil }
	samples, err := telemetry.NewReceiver(nc, assigned, telemetry.NewReceiverMetrics(telemetry.Samples(), nil), common, log)
	kit.Must(t, err)
	calls, err := call.NewServer(nc, map[string]call.Handler{subject.VerbTelemetry: samples.Handle}, common, log)
	kit.Must(t, err)
	streamstest.StartPart(t, calls.Start)
	return hub, js
}

// startLeaf is leaftest.StartLeaf for one that may end with an error: without power it has no disk.
func startLeaf(t *testing.T, cfg leaf.Config) (own *leaf.Server, stop func()) {
	t.Helper()
	own, err := leaf.New(cfg, zaptest.NewLogger(t))
	kit.Must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var g errgroup.Group
	g.Go(func() error { return own.Start(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Logf("leaf: %v", err)
		}
	})
	t.Cleanup(stop)
	kit.Receive(t, "the leaf is ready", own.Ready())
	return own, stop
}

// boot starts a gateway on a disk that has the content of an image; "" is an empty one.
func boot(t *testing.T, hub *leaftest.Hub, image, listen string, change func(*config.Devices)) *poweredGateway {
	t.Helper()
	dir := t.TempDir()
	disk, err := faultfs.MountAt(dir, image)
	if err != nil && os.Getenv("REQUIRE") != "" && os.Getuid() == 0 {
		t.Fatal(err)
	}
	if err != nil {
		t.Skip(err)
	}
	p := &poweredGateway{gateway: &gateway{T: t, outbox: &outbox{}, link: streamstest.NewSwitchableLink(), dir: dir, address: listen}, disk: disk}
	own, stopLeaf := startLeaf(t, leaf.Config{
		Node: "edge-1", Dir: filepath.Join(dir, "leaf"), Hub: []string{leaftest.URL(hub.Addr())}, RedialMin: 200 * time.Millisecond, RedialMax: time.Second, Reserve: -1,
	})
	p.nc, err = own.Conn("test")
	kit.Must(t, err)
	js, err := jetstream.New(p.nc)
	kit.Must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p.store, err = store.Open(ctx, js, store.Config{}, zaptest.NewLogger(t))
	kit.Must(t, err)
	settings := config.Devices{
		MQTT:      config.MQTT{Mode: config.MQTTInternal, Listen: listen, AllowLoopbackAnonymous: true},
		Telemetry: config.Telemetry{MaxMiB: 16, MaxAge: config.Duration(time.Hour)},
	}
	change(&settings)
	p.metrics = prometheus.NewRegistry()
	part, err := devices.New(devices.Config{
		Node: "edge-1", Dir: dir, Settings: settings, Local: p.nc, Cloud: p.nc, Link: leafLink{own}, Store: p.store, Reports: p.outbox, Metrics: p.metrics,
	}, zaptest.NewLogger(t))
	kit.Must(t, err)
	stopPart := streamstest.StartPart(t, part.Start)
	p.stop = sync.OnceFunc(func() {
		stopPart()
		p.nc.Close()
		stopLeaf()
		kit.Must(t, disk.Unmount())
	})
	t.Cleanup(p.stop)
	return p
}

// cutPower cuts the power and returns what is on the medium.
func (p *poweredGateway) cutPower(seed uint64) string {
	p.Helper()
	to := p.TempDir()
	kit.Must(p, p.disk.CutPower(to, seed))
	p.stop()
	return to
}

// cutApps are the apps of the devices, over several cuts.
type cutApps struct {
	*testing.T
	// byPuback says that a PUBACK promises that a sample is kept; otherwise its result does.
	byPuback bool

	mu       sync.Mutex
	next     [cutDevices]int      // guarded by mu
	promised [cutDevices][]string // guarded by mu; in order
}

// lastValue is that of the last sample of each device.
const lastValue = "1000000"

func cutTopic(device int) string {
	return fmt.Sprintf("$hw/events/device/default/d%d/twin/update", device)
}

// connect connects the app of a device, which keeps its session and subscribes to results if the broker has none.
func (a *cutApps) connect(p *poweredGateway, device int) paho.Client {
	a.Helper()
	var app paho.Client
	kit.Succeeds(a, time.Minute, func() error {
		app = paho.NewClient(paho.NewClientOptions().AddBroker("tcp://" + p.address).SetClientID(fmt.Sprint("app", device)).SetCleanSession(false).
			SetProtocolVersion(4).SetAutoReconnect(false).SetConnectTimeout(5 * time.Second).
			SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { a.takeResult(device, m.Payload()) }))
		token := app.Connect().(*paho.ConnectToken)
		if !token.WaitTimeout(20 * time.Second) {
			return errors.New("no CONNACK")
		}
		if token.Error() != nil || token.SessionPresent() {
			return token.Error()
		}
		subscribed := app.Subscribe(cutTopic(device)+"/result", 1, nil)
		if !subscribed.WaitTimeout(20 * time.Second) {
			return errors.New("no SUBACK")
		}
		return subscribed.Error()
	})
	a.Cleanup(func() { app.Disconnect(0) })
	return app
}

// takeResult takes an answer to an app.
func (a *cutApps) takeResult(device int, payload []byte) {
	var result struct {
		Event string `json:"event_id"`
		Code  int    `json:"code"`
	}
	if err := json.Unmarshal(payload, &result); err == nil && result.Code == 0 && (!a.byPuback || result.Event == lastValue) {
		a.promise(device, result.Event)
	}
}

func (a *cutApps) promise(device int, value string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !slices.Contains(a.promised[device], value) { // an answer may come again
		a.promised[device] = append(a.promised[device], value)
	}
}

func (a *cutApps) count() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, values := range a.promised {
		n += len(values)
	}
	return n
}

func (a *cutApps) publish(app paho.Client, device int, value string) paho.Token {
	return app.Publish(cutTopic(device), 1, false, fmt.Sprintf(`{"event_id":%q,"twin":{"temp":{"actual":{"value":%q}}}}`, value, value))
}

// nextValue returns the next value of a device.
func (a *cutApps) nextValue(device int) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next[device]++
	return strconv.Itoa(a.next[device])
}

// start connects the app of a device, and returns what publishes its values.
func (a *cutApps) start(p *poweredGateway, device int) (run func(ctx context.Context)) {
	a.Helper()
	app := a.connect(p, device)
	return func(ctx context.Context) { a.run(ctx, app, device) }
}

// run publishes rising values of a device until ctx ends or the broker is gone.
func (a *cutApps) run(ctx context.Context, app paho.Client, device int) {
	for ctx.Err() == nil {
		value := a.nextValue(device)
		token := a.publish(app, device, value)
		select {
		case <-token.Done():
			if token.Error() != nil {
				return
			}
			if a.byPuback {
				a.promise(device, value)
			}
		case <-ctx.Done():
			return
		}
	}
}

// cut lets all devices report until some samples are promised, cuts the power meanwhile, and returns what is on the medium.
func (a *cutApps) cut(p *poweredGateway, more int, seed uint64, start func(p *poweredGateway, device int) (run func(ctx context.Context))) string {
	a.Helper()
	ctx, cancel := context.WithCancel(a.Context())
	defer cancel()
	var apps sync.WaitGroup
	want := a.count() + more
	for i := range cutDevices {
		run := start(p, i)
		apps.Go(func() { run(ctx) })
	}
	kit.Within(a, 3*time.Minute, "samples are promised", func() bool { return a.count() >= want })
	image := p.cutPower(seed)
	cancel()
	apps.Wait()
	return image
}

// check waits for the last sample of each device, and compares what is in the hub with what was promised.
func (a *cutApps) check(js jetstream.JetStream) {
	a.Helper()
	var stored [cutDevices][]string
	kit.Within(a, 3*time.Minute, "the last samples are in the hub", func() bool {
		stored = a.stored(js)
		for _, values := range stored {
			if !slices.Contains(values, lastValue) {
				return false
			}
		}
		return true
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for device, values := range stored {
		if sorted := slices.SortedFunc(slices.Values(values), compareNumbers); !slices.Equal(sorted, values) {
			a.Errorf("device %d: samples are out of order: %v", device, values)
		} else if n := len(values) - len(slices.Compact(sorted)); n > 0 {
			a.Errorf("device %d: %d samples are stored twice", device, n)
		}
		var lost []string
		for _, value := range a.promised[device] {
			if !slices.Contains(values, value) {
				lost = append(lost, value)
			}
		}
		if len(lost) > 0 {
			a.Errorf("device %d: %d of %d promised samples are lost: %v", device, len(lost), len(a.promised[device]), lost)
		}
	}
}

func compareNumbers(a, b string) int {
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
}

// stored returns the samples of each device in the hub.
func (a *cutApps) stored(js jetstream.JetStream) (values [cutDevices][]string) {
	a.Helper()
	stream, err := js.Stream(a.Context(), subject.TelemetryStream)
	kit.Must(a, err)
	state := stream.CachedInfo().State
	for seq := max(state.FirstSeq, 1); seq <= state.LastSeq; seq++ {
		m, err := stream.GetMsg(a.Context(), seq)
		kit.Must(a, err)
		var device int
		_, err = fmt.Sscanf(m.Subject, "telemetry.edge-1.default.d%d.temp", &device)
		kit.Must(a, err)
		values[device] = append(values[device], string(m.Data))
	}
	return values
}

func syncAlways(always bool) func(*config.Devices) {
	return func(d *config.Devices) { d.MQTT.SyncAlways = always }
}

// After power cuts at any moment the broker starts, no app that resumes its session is deaf, and every sample that was promised is in the hub once, in
// order. What promises that, depends on when the broker syncs: a result, or each PUBACK.
func TestDevices_PowerCut(t *testing.T) {
	for name, always := range map[string]bool{"result": false, "PUBACK": true} {
		t.Run(name, func(t *testing.T) {
			hub, js := startCloud(t)
			address, image := freeAddress(t), ""
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			apps := &cutApps{T: t, byPuback: always}
			const cuts = 3
			for cut := range uint64(cuts) {
				p := boot(t, hub, image, address, syncAlways(always))
				if cut == 0 {
					p.setModel("INT")
					for i := range cutDevices {
						p.setDevice(fmt.Sprint("d", i), "edge-1", "0")
					}
				}
				image = apps.cut(p, 40+rand.IntN(100), (seed+cut)*(cut%2), apps.start) // the first and the last without any unsynced write
			}
			p := boot(t, hub, image, address, syncAlways(always))
			for i := range cutDevices {
				apps.publish(apps.connect(p, i), i, lastValue)
			}
			kit.Within(t, 3*time.Minute, "each app has its answer", func() bool {
				apps.mu.Lock()
				defer apps.mu.Unlock()
				return !slices.ContainsFunc(apps.promised[:], func(values []string) bool { return !slices.Contains(values, lastValue) })
			})
			apps.check(js)
		})
	}
}
