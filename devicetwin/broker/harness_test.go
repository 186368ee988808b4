package broker_test

import (
	"context"
	"encoding/json"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/test/kit"
)

// twinStore keeps records in memory. Its writes can be made to fail.
type twinStore struct {
	mu      sync.Mutex
	records map[types.NamespacedName][]byte
	err     error
	saves   int
	// blocked: writes hang until their ctx ends, as on a stalled disk.
	blocked bool
}

func newTwinStore() *twinStore { return &twinStore{records: map[types.NamespacedName][]byte{}} }

func (s *twinStore) SaveTwins(ctx context.Context, records map[types.NamespacedName][]byte) error {
	s.mu.Lock()
	if s.blocked {
		s.mu.Unlock()
		<-ctx.Done()
		return ctx.Err()
	}
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.saves++
	for id, raw := range records {
		if raw == nil {
			delete(s.records, id)
		} else {
			s.records[id] = raw
		}
	}
	return nil
}

func (s *twinStore) LoadTwins(context.Context) (map[types.NamespacedName][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.records), nil
}

func (s *twinStore) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *twinStore) block(blocked bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked = blocked
}

// reported returns the stored reported value of temp of a device.
func (s *twinStore) reported(t testing.TB, name string) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var stored struct{ Record devicetwin.Record }
	raw, ok := s.records[types.NamespacedName{Namespace: "default", Name: name}]
	if !ok {
		return ""
	}
	if err := json.Unmarshal(raw, &stored); err != nil {
		t.Fatal(err)
	}
	return stored.Record.Reported["temp"].Value
}

// running is a broker that runs until stop.
type running struct {
	*broker.Server
	metrics *prometheus.Registry
	stop    func()
}

// start runs a broker that lets anonymous clients in. The devices are there from the start.
func start(t testing.TB, store *twinStore, change func(*broker.Config), devices ...string) *running {
	t.Helper()
	r := launch(t, store, change)
	for _, name := range devices {
		r.setDevice(t, name, "", 1)
	}
	r.load(t)
	return r
}

// load says that all devices are there.
func (r *running) load(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	kit.Must(t, r.DevicesLoaded(ctx))
	<-r.Ready()
}

// launch runs a broker that does not know its devices yet.
func launch(t testing.TB, store *twinStore, change func(*broker.Config)) *running {
	t.Helper()
	return launchWith(t, store, change, func(*broker.Server) {})
}

// launchWith is launch with a server that was prepared.
func launchWith(t testing.TB, store *twinStore, change func(*broker.Config), prepare func(*broker.Server)) *running {
	t.Helper()
	r := &running{metrics: prometheus.NewRegistry()}
	cfg := broker.Config{Node: "edge-1", Dir: t.TempDir(), Listen: "127.0.0.1:0", AllowAnonymous: true, Metrics: r.metrics}
	if change != nil {
		change(&cfg)
	}
	server, err := broker.New(cfg, devicetwin.NewTwins(store, time.Now), zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)))
	kit.Must(t, err)
	prepare(server)
	r.Server = server
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("broker: %v", err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// setDevice applies a Device with the property temp; an empty desired is none.
func (r *running) setDevice(t testing.TB, name, desired string, generation int64) {
	t.Helper()
	device := &devices.Device{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("u-" + name), Generation: generation},
		Spec:       devices.DeviceSpec{NodeName: "edge-1", Properties: []devices.DeviceProperty{{Name: "temp", Desired: &devices.TwinProperty{Value: desired}}}},
	}
	model := &devices.DeviceModel{Spec: devices.DeviceModelSpec{Properties: []devices.ModelProperty{{Name: "temp", Type: "INT", AccessMode: "ReadWrite"}}}}
	kit.Must(t, r.SetDevice(t.Context(), devicetwin.NewSpec(device, model)))
}

// counter returns the sum of a metric over labels that have a value ("" is any).
func (r *running) counter(t testing.TB, name, label string) float64 {
	t.Helper()
	families, err := r.metrics.Gather()
	kit.Must(t, err)
	sum := 0.0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (label == "" || m.GetLabel()[0].GetValue() == label) {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// app is an MQTT client.
type app struct {
	paho.Client
	received chan paho.Message
}

// options of a client as KubeEdge's apps have them.
func (r *running) options(clientID string) *paho.ClientOptions {
	return paho.NewClientOptions().AddBroker("tcp://" + r.Addr()).SetClientID(clientID).SetAutoReconnect(false).SetConnectTimeout(10 * time.Second)
}

func connect(t testing.TB, o *paho.ClientOptions) *app {
	t.Helper()
	a := &app{received: make(chan paho.Message, 4096)}
	a.Client = logIn(t, o.SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { a.received <- m }))
	t.Cleanup(func() { a.Disconnect(100) })
	return a
}

// logIn connects a client. A client whose id has just gone is closed once by nats-server, as one of two that compete for a session.
func logIn(t testing.TB, o *paho.ClientOptions) paho.Client {
	t.Helper()
	var c paho.Client
	kit.Succeeds(t, 20*time.Second, func() error {
		c = paho.NewClient(o)
		token := c.Connect()
		token.WaitTimeout(10 * time.Second)
		return token.Error()
	})
	return c
}

// newApp connects an anonymous app that subscribes.
func (r *running) newApp(t testing.TB, filters ...string) *app {
	t.Helper()
	a := connect(t, r.options("app-"+t.Name()[4:8]+"-"+time.Now().Format("150405.000000")[7:]))
	for _, filter := range filters {
		a.subscribe(t, filter, 1)
	}
	return a
}

func wait(t testing.TB, token paho.Token) {
	t.Helper()
	if !token.WaitTimeout(10 * time.Second) {
		t.Fatal("the broker does not answer")
	}
	kit.Must(t, token.Error())
}

func (a *app) subscribe(t testing.TB, filter string, qos byte) {
	t.Helper()
	token := a.Subscribe(filter, qos, nil).(*paho.SubscribeToken)
	wait(t, token)
	if granted := token.Result()[filter]; granted > 2 {
		t.Fatalf("the subscription to %s is refused", filter)
	}
}

func (a *app) publish(t testing.TB, topic, payload string, qos byte) {
	t.Helper()
	wait(t, a.Publish(topic, qos, false, payload))
}

// expect waits for the next message, which must be of a topic, and returns its payload without what differs from run to run.
func (a *app) expect(t testing.TB, topic string) map[string]any {
	t.Helper()
	select {
	case m := <-a.received:
		if m.Topic() != topic {
			t.Fatalf("a message of %s instead of %s: %s", m.Topic(), topic, m.Payload())
		}
		var payload map[string]any
		if err := json.Unmarshal(m.Payload(), &payload); err != nil {
			t.Fatal(err)
		}
		if payload["timestamp"] == 0.0 {
			t.Errorf("%s has no time", topic)
		}
		delete(payload, "timestamp")
		return payload
	case <-time.After(10 * time.Second):
		t.Fatalf("no message of %s", topic)
		return nil
	}
}

// quiet checks that nothing has come so far, after a message that passes through all parts has come back.
func (a *app) quiet(t testing.TB) {
	t.Helper()
	const topic = "$hw/events/node/edge-1/membership/get"
	a.subscribe(t, topic+"/result", 1)
	a.publish(t, topic, `{"event_id":"sync"}`, 1)
	if got := a.expect(t, topic+"/result"); got["event_id"] != "sync" {
		t.Errorf("got %v", got)
	}
}

const device = "$hw/events/device/default/"

// text returns compact JSON with sorted keys.
func text(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	kit.Must(t, err)
	return strings.TrimSpace(string(b))
}
