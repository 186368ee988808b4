package edge

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/edged/devices/override"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/clitest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// oneDevice is the source of a gateway with one Device, which reports what it shall have.
type oneDevice struct {
	device *devices.Device
	model  *devices.DeviceModel
	keeper *override.Keeper
}

func (o *oneDevice) Devices() []deviceview.Device {
	_, _, view, _ := o.Device(types.NamespacedName{Namespace: "plant", Name: "boiler"})
	return []deviceview.Device{view}
}

func (o *oneDevice) Device(id types.NamespacedName) (*devices.Device, *devices.DeviceModel, deviceview.Device, bool) {
	if id != (types.NamespacedName{Namespace: "plant", Name: "boiler"}) {
		return nil, nil, deviceview.Device{}, false
	}
	view := deviceview.New(o.device, nil)
	p := &view.Properties[0]
	p.Reported = p.Desired
	if set, ok := o.keeper.Of(id, o.device.UID)["setpoint"]; ok {
		p.Override, p.Reported = &set, &set.Value
	}
	return o.device, o.model, view, true
}

// diskInMemory is a store whose Save can fail.
type diskInMemory struct {
	mu      sync.Mutex
	records map[string][]byte // guarded by mu
	err     error             // guarded by mu
}

func (m *diskInMemory) Save(_ context.Context, records map[string][]byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.Copy(m.records, records)
	return m.err
}

func (m *diskInMemory) Load(context.Context) (map[string][]byte, error) { return nil, nil }

func (m *diskInMemory) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// serveDevices serves edgecore's paths for devices on a unix socket, before handler wraps them.
func serveDevices(t *testing.T, wrap func(http.Handler) http.Handler) (socket string, disk *diskInMemory) {
	t.Helper()
	disk = &diskInMemory{records: map[string][]byte{}}
	keeper := override.NewKeeper(func(context.Context) (override.Store, error) { return disk, nil }, time.Now, zaptest.NewLogger(t))
	streamstest.StartPart(t, keeper.Start)
	source := &oneDevice{keeper: keeper, device: &devices.Device{}, model: &devices.DeviceModel{}}
	kit.Must(t, json.Unmarshal([]byte(`{"metadata":{"namespace":"plant","name":"boiler","uid":"u1","generation":1},"spec":{"nodeName":"gw","properties":[
		{"name":"setpoint","desired":{"value":"60"}}]}}`), source.device))
	kit.Must(t, json.Unmarshal([]byte(`{"spec":{"properties":[{"name":"setpoint","type":"INT","accessMode":"ReadWrite","maximum":"90"}]}}`), source.model))
	socket = filepath.Join(t.TempDir(), "api.sock")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	kit.Must(t, err)
	server := &http.Server{Handler: wrap(override.NewHandler(keeper, source, zaptest.NewLogger(t))), ReadHeaderTimeout: time.Minute}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return socket, disk
}

func asItIs(h http.Handler) http.Handler { return h }

// TestEdge_Device: values are set and ended on the gateway, and what is refused changes nothing and says so by the exit code.
func TestEdge_Device(t *testing.T) {
	socket, disk := serveDevices(t, asItIs)
	t.Setenv("FROND_SOCKET", socket)
	run := func(wantCode int, want string, args ...string) {
		t.Helper()
		code, out, errs := clitest.Run(NewCommand(), append([]string{"device", "-n", "plant"}, args...)...)
		if code != wantCode || !strings.Contains(out+errs, want) {
			t.Errorf("%v: code %d, want %d, and %q in %s%s", args, code, wantCode, want, out, errs)
		}
	}
	run(0, "boiler", "ls")
	run(0, "no devices", "ls", "-n", "default")
	run(0, "boiler", "ls", "-n", "default", "-A")
	run(0, "60", "get", "boiler")
	run(1, "belongs to this gateway", "get", "none")
	run(1, "need an end", "set", "boiler", "setpoint=70")
	run(1, "choose one", "set", "boiler", "setpoint=70", "--for", "1h", "--end")
	run(1, "want PROPERTY=VALUE", "set", "boiler", "setpoint", "--for", "1h")
	run(1, "needs an end", "set", "boiler", "setpoint=70", "--for", "200h")
	run(3, "not within", "set", "boiler", "setpoint=99", "--for", "1h")
	run(3, "no such property", "set", "boiler", "x=1", "--for", "1h")
	run(1, "is not set on the gateway", "set", "boiler", "setpoint", "--end")
	run(0, "plant/boiler: setpoint=70 until 20", "set", "boiler", "setpoint=70", "--for", "1h", "--by", "ada")
	run(0, "70 until 20", "get", "boiler")
	run(0, `"by": "ada"`, "get", "boiler", "-o", "json")
	disk.fail(errors.New("no space left on device"))
	run(5, "the values may be ended. frond edge device get boiler shows it", "set", "boiler", "--end")
	run(0, "70 until 20", "get", "boiler") // an error has ended nothing
	disk.fail(nil)
	run(0, "driven again", "set", "boiler", "--end")
	if code, out, _ := clitest.Run(NewCommand(), "device", "-n", "plant", "get", "boiler"); code != 0 || strings.Contains(out, "until") {
		t.Errorf("after the end: %d %s", code, out)
	}
}

// TestEdge_DeviceWithoutAnAnswer: edgecore takes the values and its answer is lost. The command says that they may be set.
func TestEdge_DeviceWithoutAnAnswer(t *testing.T) {
	socket, _ := serveDevices(t, func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodPut {
				h.ServeHTTP(w, r)
				return
			}
			h.ServeHTTP(discard{http.Header{}}, r)
			panic(http.ErrAbortHandler)
		})
	})
	t.Setenv("FROND_SOCKET", socket)
	code, _, errs := clitest.Run(NewCommand(), "device", "-n", "plant", "set", "boiler", "setpoint=70", "--for", "1h")
	if code != 5 || !strings.Contains(errs, "the values may be set. frond edge device get boiler shows it") {
		t.Errorf("code %d, %s", code, errs)
	}
	if code, out, _ := clitest.Run(NewCommand(), "device", "-n", "plant", "get", "boiler"); code != 0 || !strings.Contains(out, "70 until") {
		t.Errorf("what it names shows: %d %s", code, out)
	}
}

// discard is an answer that gets lost.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

// TestEdge_DeviceWatch: a value that is set is a line.
func TestEdge_DeviceWatch(t *testing.T) {
	socket, _ := serveDevices(t, asItIs)
	t.Setenv("FROND_SOCKET", socket)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	cmd := NewCommand()
	lines := &lineFinder{text: "override setpoint: 70 until", found: stop}
	cmd.SetOut(lines)
	cmd.SetArgs([]string{"device", "-n", "plant", "watch", "boiler"})
	lines.first = func() {
		if code, _, errs := clitest.Run(NewCommand(), "device", "-n", "plant", "set", "boiler", "setpoint=70", "--for", "1h"); code != 0 {
			t.Errorf("set: %d %s", code, errs)
		}
	}
	watch, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := cmd.ExecuteContext(watch); err != nil || ctx.Err() == nil {
		t.Errorf("the watch ends with %v, after %q", err, lines.all.String())
	}
}

// lineFinder calls first with the first line and found when a text was written.
type lineFinder struct {
	all         strings.Builder
	text        string
	first       func()
	found       func()
	wroteBefore bool
}

func (l *lineFinder) Write(p []byte) (int, error) {
	n, err := l.all.Write(p)
	if !l.wroteBefore {
		l.wroteBefore = true
		l.first()
	}
	if strings.Contains(l.all.String(), l.text) {
		l.found()
	}
	return n, err
}
