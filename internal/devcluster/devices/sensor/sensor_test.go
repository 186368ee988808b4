package sensor_test

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/internal/devcluster/devices/sensor"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

// gateway is a broker with its disk, over restarts. It keeps twins and samples in memory.
type gateway struct {
	mu      sync.Mutex
	records map[types.NamespacedName][]byte
	samples []string // the values of the property Sample, in their order
	err     error
	dir     string
	listen  string
}

func (g *gateway) SaveTwins(_ context.Context, records map[types.NamespacedName][]byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	maps.Copy(g.records, records)
	return nil
}

func (g *gateway) LoadTwins(context.Context) (map[types.NamespacedName][]byte, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.records), nil
}

func (g *gateway) Record(_ context.Context, samples []broker.Sample) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return g.err
	}
	for _, s := range samples {
		if s.Property == sensor.Sample {
			g.samples = append(g.samples, s.Value)
		}
	}
	return nil
}

func (g *gateway) Enqueue(ctx context.Context, samples []broker.Sample) error {
	return g.Record(ctx, samples)
}

func (g *gateway) CheckWritable() error { return nil }

func (g *gateway) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

// start runs the broker until stop. It has the device if desired is not "-".
func (g *gateway) start(t *testing.T, desired string) (server *broker.Server, stop func()) {
	t.Helper()
	server, err := broker.New(broker.Config{Node: "edge-1", Dir: g.dir, Listen: g.listen, AllowAnonymous: true, Recorder: g},
		devicetwin.NewTwins(g, time.Now), zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel)))
	kit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("broker: %v", err)
		}
	})
	t.Cleanup(stop)
	if desired != "-" {
		setDevice(t, server, desired, 1)
	}
	kit.Must(t, server.DevicesLoaded(t.Context()))
	<-server.Ready()
	g.listen = server.Addr()
	return server, stop
}

func setDevice(t *testing.T, server *broker.Server, desired string, generation int64) {
	t.Helper()
	device := &devices.Device{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "boiler", UID: "u", Generation: generation},
		Spec: devices.DeviceSpec{NodeName: "edge-1", Properties: []devices.DeviceProperty{
			{Name: sensor.Sample}, {Name: sensor.Setpoint, Desired: &devices.TwinProperty{Value: desired}},
		}},
	}
	model := &devices.DeviceModel{Spec: devices.DeviceModelSpec{Properties: []devices.ModelProperty{
		{Name: sensor.Sample, Type: "INT", AccessMode: "ReadOnly"}, {Name: sensor.Setpoint, Type: "STRING", AccessMode: "ReadWrite"},
	}}}
	kit.Must(t, server.SetDevice(t.Context(), devicetwin.NewSpec(device, model)))
}

// run runs a sensor until stop.
func run(t *testing.T, cfg sensor.Config) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- sensor.New(cfg, zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel))).Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("sensor: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func awaitStatus(t *testing.T, file, what string, holds func(sensor.Status) bool) (s sensor.Status) {
	t.Helper()
	kit.Within(t, time.Minute, what, func() bool {
		var err error
		s, err = sensor.ReadStatus(file)
		kit.Must(t, err)
		return holds(s)
	})
	return s
}

// check compares what the gateway has stored with what the sensor says of itself.
func (g *gateway) check(t *testing.T, s sensor.Status) {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	var numbers []int64
	for _, text := range g.samples {
		number, err := strconv.ParseInt(text, 10, 64)
		kit.Must(t, err)
		numbers = append(numbers, number)
	}
	if err := s.Check(numbers); err != nil {
		t.Errorf("%v; the sensor has %+v", err, s)
	}
}

// TestSensor_EachNumberIsAnswered: a sensor waits for its device, reports in order over the end of the broker and a disk that fails, applies what is
// desired, and goes on with its numbers when it is started again.
func TestSensor_EachNumberIsAnswered(t *testing.T) {
	g := &gateway{records: map[types.NamespacedName][]byte{}, dir: t.TempDir(), listen: "127.0.0.1:0"}
	server, stopBroker := g.start(t, "-")
	cfg := sensor.Config{Namespace: "default", Name: "boiler", Broker: g.listen, Interval: 10 * time.Millisecond, StatusFile: filepath.Join(t.TempDir(), "status.json")}
	stop := run(t, cfg)
	awaitStatus(t, cfg.StatusFile, "the gateway does not know the device", func(s sensor.Status) bool { return s.Refused > 0 && s.Answered == 0 })
	setDevice(t, server, "slow", 1)
	awaitStatus(t, cfg.StatusFile, "20 numbers and a setpoint", func(s sensor.Status) bool { return s.Connected && s.Answered >= 20 && s.Setpoint == "slow" })

	stopBroker()
	before := awaitStatus(t, cfg.StatusFile, "the connection ends", func(s sensor.Status) bool { return !s.Connected && s.Problem != "" })
	server, _ = g.start(t, "slow")
	before = awaitStatus(t, cfg.StatusFile, "it goes on", func(s sensor.Status) bool { return s.Connected && s.Answered > before.Answered+5 })
	g.fail(errors.New("disk full"))
	refused := awaitStatus(t, cfg.StatusFile, "answers are errors", func(s sensor.Status) bool { return s.Refused > before.Refused+2 })
	g.fail(nil)
	awaitStatus(t, cfg.StatusFile, "it goes on", func(s sensor.Status) bool { return s.Answered > refused.Answered+5 })
	setDevice(t, server, "fast", 2)
	awaitStatus(t, cfg.StatusFile, "a new setpoint", func(s sensor.Status) bool { return s.Setpoint == "fast" })

	stop()
	last := awaitStatus(t, cfg.StatusFile, "it has ended", func(s sensor.Status) bool { return !s.Connected })
	g.check(t, last)
	stop = run(t, cfg)
	awaitStatus(t, cfg.StatusFile, "it goes on with its numbers", func(s sensor.Status) bool { return s.Answered > last.Answered+5 })
	stop()
	g.check(t, awaitStatus(t, cfg.StatusFile, "it has ended", func(s sensor.Status) bool { return !s.Connected }))
}

// TestSensor_DamagedStatusFile: a sensor that cannot know its numbers does not begin again at 1.
func TestSensor_DamagedStatusFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "status.json")
	kit.Must(t, os.WriteFile(file, []byte("{"), 0o600))
	if err := sensor.New(sensor.Config{StatusFile: file}, zaptest.NewLogger(t)).Start(t.Context()); err == nil {
		t.Error("it starts")
	}
}
