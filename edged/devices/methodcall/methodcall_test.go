package methodcall_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/devicecall"
	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/edged/devices/methodcall"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

// boiler is the source of one Device.
type boiler struct{ t *testing.T }

func (b boiler) Device(id types.NamespacedName) (*devices.Device, *devices.DeviceModel) {
	if id != (types.NamespacedName{Namespace: "plant", Name: "boiler"}) {
		return nil, nil
	}
	device, model := &devices.Device{}, &devices.DeviceModel{}
	kit.Must(b.t, json.Unmarshal([]byte(`{"metadata":{"namespace":"plant","name":"boiler"},"spec":{"protocol":{"protocolName":"modbus"},
		"properties":[{"name":"setpoint"},{"name":"label"},{"name":"level"}],
		"methods":[{"name":"set","propertyNames":["setpoint"]},{"name":"adjust","propertyNames":["setpoint","label"]},{"name":"read","propertyNames":["level"]}]}}`), device))
	kit.Must(b.t, json.Unmarshal([]byte(`{"spec":{"properties":[{"name":"setpoint","type":"INT","maximum":"90"},{"name":"label","type":"STRING"},
		{"name":"level","type":"INT","accessMode":"ReadOnly"}]}}`), model))
	return device, model
}

// at locates each mapper at one address.
type at struct {
	address string
	err     error
}

func (a at) Locate(_ context.Context, protocol string) (string, error) {
	if protocol != "modbus" {
		return "", errors.New("another protocol")
	}
	return a.address, a.err
}

// mapper is a REST server that records the paths that it was asked.
type mapper struct {
	*httptest.Server

	mu    sync.Mutex
	paths []string // guarded by mu
}

func startMapper(t *testing.T, answer http.HandlerFunc) *mapper {
	t.Helper()
	m := &mapper{}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.mu.Lock()
		m.paths = append(m.paths, r.Method+" "+r.URL.EscapedPath())
		m.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(m.Close)
	return m
}

func (m *mapper) asked() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.paths
}

func (m *mapper) address() string { return m.Listener.Addr().String() }

func request(method, property, value string) *devicecall.EdgeRequest {
	return &devicecall.EdgeRequest{
		Request: devicecall.Request{Method: method, Property: property, Value: value, Milliseconds: 10_000}, Namespace: "plant", Name: "boiler", User: "ada",
	}
}

// TestCall_Answers: the mapper gets one request at the framework's path, and its answer comes back as it is, within limits.
func TestCall_Answers(t *testing.T) {
	for name, tt := range map[string]struct {
		request *devicecall.EdgeRequest
		answer  http.HandlerFunc
		path    string
		want    devicecall.Answer
	}{
		"done": {
			request("set", "", "60"), func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("done")) },
			"GET /api/v1/devicemethod/plant/boiler/set/setpoint/60",
			devicecall.Answer{Outcome: devicecall.Answered, Status: 200, Body: []byte("done")},
		},
		"one of two properties": {
			request("adjust", "label", "50% ü?#"), func(http.ResponseWriter, *http.Request) {},
			"GET /api/v1/devicemethod/plant/boiler/adjust/label/50%25%20%C3%BC%3F%23",
			devicecall.Answer{Outcome: devicecall.Answered, Status: 200, Body: []byte{}},
		},
		"an error": {
			request("set", "setpoint", "60"), func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "valve stuck", http.StatusInternalServerError)
			},
			"GET /api/v1/devicemethod/plant/boiler/set/setpoint/60",
			devicecall.Answer{Outcome: devicecall.Answered, Status: 500, Body: []byte("valve stuck\n")},
		},
		"a redirection is not followed": {
			request("set", "", "60"), func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Location", "http://127.0.0.1:10250/pods")
				w.WriteHeader(http.StatusFound)
			},
			"GET /api/v1/devicemethod/plant/boiler/set/setpoint/60",
			devicecall.Answer{Outcome: devicecall.Answered, Status: 302, Body: []byte{}},
		},
		"too much": {
			request("set", "", "60"), func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, 1<<20)) },
			"GET /api/v1/devicemethod/plant/boiler/set/setpoint/60",
			devicecall.Answer{Outcome: devicecall.Answered, Status: 200, Body: make([]byte, devicecall.MaxBody), Truncated: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := startMapper(t, tt.answer)
			got := methodcall.New(boiler{t}, at{address: m.address()}, zaptest.NewLogger(t)).Call(t.Context(), tt.request)
			if got.Outcome != tt.want.Outcome || got.Status != tt.want.Status || string(got.Body) != string(tt.want.Body) || got.Truncated != tt.want.Truncated {
				t.Errorf("%s %d %.100q %v %s", got.Outcome, got.Status, got.Body, got.Truncated, got.Reason)
			}
			if asked := m.asked(); len(asked) != 1 || asked[0] != tt.path {
				t.Errorf("the mapper was asked %q, want %q", asked, tt.path)
			}
		})
	}
}

// TestCall_Refuses: what the Device, its model or the path does not allow reaches no mapper.
func TestCall_Refuses(t *testing.T) {
	m := startMapper(t, func(http.ResponseWriter, *http.Request) {})
	s := methodcall.New(boiler{t}, at{address: m.address()}, zaptest.NewLogger(t))
	elsewhere := request("set", "", "60")
	elsewhere.Name = "../../ping"
	for name, tt := range map[string]struct {
		request *devicecall.EdgeRequest
		reason  string
	}{
		"another device":      {elsewhere, "has no Device plant/../../ping"},
		"no such method":      {request("stop", "", "60"), "it has: set, adjust, read"},
		"no method":           {request("", "setpoint", "60"), "no method"},
		"another property":    {request("set", "label", "x"), "they are: setpoint"},
		"which of two":        {request("adjust", "", "60"), "they are: setpoint, label"},
		"out of range":        {request("set", "", "91"), "not within"},
		"a wrong type":        {request("set", "", "warm"), "not of the type INT"},
		"read-only":           {request("read", "", "1"), "read-only"},
		"no value":            {request("set", "", ""), "empty value"},
		"too long":            {request("adjust", "label", strings.Repeat("x", 5000)), "4096 are allowed"},
		"a path in the value": {request("adjust", "label", "../../../ping"), "no slash"},
		"a parent":            {request("adjust", "label", ".."), "no slash"},
		"a control character": {request("adjust", "label", "a\r\nHost: x"), "control character"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := s.Call(t.Context(), tt.request); got.Outcome != devicecall.Refused || !strings.Contains(got.Reason, tt.reason) {
				t.Errorf("%+v, want %q", got, tt.reason)
			}
		})
	}
	if asked := m.asked(); len(asked) != 0 {
		t.Errorf("the mapper was asked %q", asked)
	}
}

// TestCall_WithoutAnAnswer: a call that was sent has an unknown outcome, one that was not has not happened.
func TestCall_WithoutAnAnswer(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	got := make(chan struct{})
	silent := startMapper(t, func(_ http.ResponseWriter, r *http.Request) {
		close(got)
		<-r.Context().Done()
	})
	go func() {
		<-got
		end() // the time is over
	}()
	if a := methodcall.New(boiler{t}, at{address: silent.address()}, zaptest.NewLogger(t)).Call(ctx, request("set", "", "60")); a.Outcome != devicecall.Unknown {
		t.Errorf("a mapper that does not answer: %+v", a)
	}
	breaks := startMapper(t, func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if a := methodcall.New(boiler{t}, at{address: breaks.address()}, zaptest.NewLogger(t)).Call(t.Context(), request("set", "", "60")); a.Outcome != devicecall.Unknown || len(breaks.asked()) != 1 {
		t.Errorf("a mapper that dies: %+v after %d requests", a, len(breaks.asked()))
	}
	if a := methodcall.New(boiler{t}, at{address: breaks.address()}, zaptest.NewLogger(t)).Call(ctx, request("set", "", "60")); a.Outcome != devicecall.NotSent || len(breaks.asked()) != 1 {
		t.Errorf("after its time: %+v", a)
	}
	breaks.Close()
	if a := methodcall.New(boiler{t}, at{address: breaks.address()}, zaptest.NewLogger(t)).Call(t.Context(), request("set", "", "60")); a.Outcome != devicecall.NotSent {
		t.Errorf("no mapper listens: %+v", a)
	}
	if a := methodcall.New(boiler{t}, at{err: errors.New("no mapper has registered")}, zaptest.NewLogger(t)).Call(t.Context(), request("set", "", "60")); a.Outcome != devicecall.NotSent {
		t.Errorf("no mapper is known: %+v", a)
	}
}

// TestServe_Limits: what is no call, is too large or has no time left reaches no mapper.
func TestServe_Limits(t *testing.T) {
	m := startMapper(t, func(http.ResponseWriter, *http.Request) {})
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	kit.Must(t, err)
	s := methodcall.New(boiler{t}, at{address: m.address()}, zaptest.NewLogger(t))
	streamstest.StartPart(t, func(ctx context.Context) error { return s.Serve(ctx, l) })
	late := request("set", "", "60")
	late.Milliseconds = -1
	for name, tt := range map[string]struct {
		method, path string
		body         any
		code         int
		says         string
	}{
		"late":         {http.MethodPost, devicecall.EdgePath, late, http.StatusOK, `"NotSent"`},
		"another path": {http.MethodPost, "/api/v1/ping", late, http.StatusNotFound, ""},
		"a GET":        {http.MethodGet, devicecall.EdgePath, late, http.StatusMethodNotAllowed, ""},
		"too large":    {http.MethodPost, devicecall.EdgePath, request("adjust", "label", strings.Repeat("x", devicecall.MaxRequest)), http.StatusBadRequest, "too large"},
		"no JSON":      {http.MethodPost, devicecall.EdgePath, "x", http.StatusBadRequest, "unreadable"},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := json.Marshal(tt.body)
			kit.Must(t, err)
			r, err := http.NewRequestWithContext(t.Context(), tt.method, "http://"+l.Addr().String()+tt.path, strings.NewReader(string(raw)))
			kit.Must(t, err)
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
			response, err := client.Do(r)
			kit.Must(t, err)
			defer func() { kit.Must(t, response.Body.Close()) }()
			var text strings.Builder
			kit.Must(t, response.Write(&text))
			if response.StatusCode != tt.code || !strings.Contains(text.String(), tt.says) {
				t.Errorf("%d %s", response.StatusCode, text.String())
			}
		})
	}
	if asked := m.asked(); len(asked) != 0 {
		t.Errorf("the mapper was asked %q", asked)
	}
}

// TestPodLocator: only the process that has registered the protocol is found, at an address that the runtime has given it, whatever the store says.
func TestPodLocator(t *testing.T) {
	pods := []store.Entry{
		{UID: "claim", Object: []byte(`{"metadata":{"uid":"claim","annotations":{"kubernetes.io/config.mirror":"plain","frond.io/mapper-port":"22"}},"spec":{"hostNetwork":true}}`)},
		{UID: "other", Object: []byte(`{"metadata":{"uid":"other","annotations":{"kubernetes.io/config.mirror":"lone","frond.io/mapper-port":"22"}},"spec":{"hostNetwork":true}}`)},
		{UID: "plain", Object: []byte(`{"metadata":{"uid":"plain","namespace":"plant","name":"m"},"status":{"podIP":"192.168.1.50"}}`)},
		{UID: "port", Object: []byte(`{"metadata":{"uid":"port","annotations":{"frond.io/mapper-port":"8080"}}}`)},
		{UID: "bad", Object: []byte(`{"metadata":{"uid":"bad","annotations":{"frond.io/mapper-port":"80:81"}}}`)},
		{UID: "host", Object: []byte(`{"metadata":{"uid":"host"},"spec":{"hostNetwork":true},"status":{"podIP":"192.168.1.10"}}`)},
		{UID: "mirror", Object: []byte(`{"metadata":{"uid":"mirror","annotations":{"kubernetes.io/config.mirror":"static"},"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"edge-1"}]}}`)},
		{UID: "loop", Object: []byte(`{"metadata":{"uid":"loop"}}`)},
		{UID: "ended", Object: []byte(`{"metadata":{"uid":"ended"}}`)},
	}
	given := map[string][]netip.Addr{
		"plain": {netip.MustParseAddr("10.1.0.2")}, "port": {netip.MustParseAddr("fd00::2")}, "bad": {netip.MustParseAddr("10.1.0.3")},
		"static": {netip.MustParseAddr("10.1.0.4")}, "loop": {netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254")},
	}
	registered := map[string]string{"process": "uid:0", "gone": "pod:gone", "static": "pod:static", "lone": "pod:lone"}
	for _, pod := range pods {
		registered[pod.UID] = "pod:" + pod.UID
	}
	l := methodcall.PodLocator{
		Identity: func(protocol string) string { return registered[protocol] }, Pods: func() []store.Entry { return pods },
		RuntimeAddresses: func(_ context.Context, uid string) ([]netip.Addr, error) { return given[uid], nil },
	}
	for protocol, want := range map[string]string{
		"plain": "10.1.0.2:7777", "port": "[fd00::2]:8080", "host": "127.0.0.1:7777", "mirror": "10.1.0.4:7777", "static": "10.1.0.4:7777", "lone": "not on this gateway any more", "process": "127.0.0.1:7777",
		"bad": "is no port", "loop": "no address", "ended": "no address", "gone": "not on this gateway any more", "nobody": "no mapper has registered",
	} {
		address, err := l.Locate(t.Context(), protocol)
		if address != want && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %q, %v; want %q", protocol, address, err, want)
		}
	}
}
