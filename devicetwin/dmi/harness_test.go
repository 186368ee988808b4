package dmi_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/dmi"
	"github.com/frond-edge/frond/devicetwin/dmi/mapper"
	"github.com/frond-edge/frond/devicetwin/dmi/peer"
)

// settle is Config.Settle of the tests.
const settle = 100 * time.Millisecond

// fakeTwin keeps what is reported.
type fakeTwin struct {
	mu         sync.Mutex // guards all below
	values     map[string]devicetwin.PropertyUpdate
	states     map[types.NamespacedName]string
	reports    int
	deliveries map[types.NamespacedName]mapper.Delivery
	err        error
}

func (f *fakeTwin) ReportValues(_ context.Context, id types.NamespacedName, u devicetwin.Update, _ time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return f.err
	}
	for name, p := range u.Properties {
		f.values[id.String()+"/"+name] = p
	}
	f.reports++
	return nil
}

func (f *fakeTwin) ReportState(_ context.Context, id types.NamespacedName, state string, _ time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.states[id] = state
	return f.err
}

func (f *fakeTwin) SetDelivery(id types.NamespacedName, d mapper.Delivery) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deliveries[id] = d
}

func (f *fakeTwin) reason(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.deliveries[idOf(name)].Reason
}

// memoryStore is a RecordStore that survives a restart of the server.
type memoryStore struct {
	mu      sync.Mutex // guards all below
	records map[string][]byte
	err     error
	block   bool
}

func (s *memoryStore) SaveMapperRecords(ctx context.Context, records map[string][]byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.block {
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return ctx.Err()
	}
	if s.err != nil {
		return s.err
	}
	for key, raw := range records {
		if raw == nil {
			delete(s.records, key)
		} else {
			s.records[key] = raw
		}
	}
	return nil
}

func (s *memoryStore) LoadMapperRecords(context.Context) (map[string][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.records), nil
}

func (s *memoryStore) keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.records))
}

// denyAll is an Authorizer that knows one pod.
type denyAll struct{ pod types.UID }

func (d denyAll) Authorize(_ context.Context, p peer.Peer, protocol string) error {
	if p.Pod == d.pod && protocol == "modbus" {
		return nil
	}
	return errors.New("no")
}

// gateway is an edgecore as far as mappers see it. Its Devices and its store survive a restart.
type gateway struct {
	t      testing.TB
	dir    string
	store  *memoryStore
	twin   *fakeTwin
	config func(*dmi.Config)
	// values takes the reports in place of twin, if it is set.
	values dmi.Twin
	// unsynced: start gives the server no Devices.
	unsynced bool

	server  *dmi.Server
	stop    func()
	devices map[string]*devices.Device
	models  map[string]*devices.DeviceModel
}

func newGateway(t testing.TB) *gateway {
	t.Helper()
	return &gateway{
		t: t, dir: t.TempDir(), store: &memoryStore{records: map[string][]byte{}},
		twin: &fakeTwin{
			values: map[string]devicetwin.PropertyUpdate{}, states: map[types.NamespacedName]string{}, deliveries: map[types.NamespacedName]mapper.Delivery{},
		},
		config: func(*dmi.Config) {}, devices: map[string]*devices.Device{}, models: map[string]*devices.DeviceModel{},
	}
}

// start starts edgecore and gives it the Devices of its store.
func (g *gateway) start() {
	g.t.Helper()
	cfg := dmi.Config{Dir: g.dir, AllowHost: true, CallTimeout: 500 * time.Millisecond, Settle: settle, Unreachable: time.Second}
	g.config(&cfg)
	values := g.values
	if values == nil {
		values = g.twin
	}
	server, err := dmi.New(cfg, values, denyAll{pod: "a"}, g.store, g.twin, zaptest.NewLogger(g.t))
	if err != nil {
		g.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(g.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	g.server = server
	g.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			g.t.Errorf("Start: %v", err)
		}
	})
	g.t.Cleanup(g.stop)
	if !g.unsynced {
		g.sync()
	}
	select {
	case <-server.Ready():
	case <-time.After(10 * time.Second):
		g.t.Fatal("the server is not ready")
	}
}

// sync gives the server all Devices.
func (g *gateway) sync() {
	for _, m := range g.models {
		g.server.SetModel(m)
	}
	for _, d := range g.devices {
		g.server.SetDevice(d)
	}
	g.server.Synced()
}

func idOf(name string) types.NamespacedName {
	namespace, name, _ := strings.Cut(name, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// setModel makes a DeviceModel with the property p.
func (g *gateway) setModel(name string) {
	id := idOf(name)
	g.models[name] = &devices.DeviceModel{
		ObjectMeta: metav1.ObjectMeta{Namespace: id.Namespace, Name: id.Name},
		Spec:       devices.DeviceModelSpec{Properties: []devices.ModelProperty{{Name: "p", Type: "INT", AccessMode: "ReadWrite"}}},
	}
	if g.server != nil {
		g.server.SetModel(g.models[name])
	}
}

// setDevice makes or changes a Device of a protocol with the model m of its namespace.
func (g *gateway) setDevice(name, protocol, desired string) {
	id := idOf(name)
	g.devices[name] = &devices.Device{
		ObjectMeta: metav1.ObjectMeta{Namespace: id.Namespace, Name: id.Name},
		Spec: devices.DeviceSpec{
			DeviceModelRef: &corev1.LocalObjectReference{Name: "m"}, Protocol: devices.ProtocolConfig{ProtocolName: protocol},
			Properties: []devices.DeviceProperty{{Name: "p", Desired: &devices.TwinProperty{Value: desired}}},
		},
	}
	if g.server != nil {
		g.server.SetDevice(g.devices[name])
	}
}

func (g *gateway) removeDevice(name string) {
	delete(g.devices, name)
	if g.server != nil {
		g.server.RemoveDevice(idOf(name))
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		<-ticker.C
	}
}
