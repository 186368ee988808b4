package devices_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/deviceview"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/mappertest"
)

// call sends a request to the gateway's socket, as frond edge device does.
func (g *gateway) call(method, path string, body any) (code int, answer string) {
	g.Helper()
	raw, err := json.Marshal(body)
	kit.Must(g, err)
	w := httptest.NewRecorder()
	g.api.ServeHTTP(w, httptest.NewRequestWithContext(g.Context(), method, deviceview.Path+path, bytes.NewReader(raw)))
	return w.Code, w.Body.String()
}

// payloads are the messages of a topic.
type payloads struct {
	mu   sync.Mutex
	list []string // guarded by mu
}

func (p *payloads) has(part string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.list, func(s string) bool { return strings.Contains(s, part) })
}

// deltasOf collects what an app is told to apply.
func deltasOf(t *testing.T, app paho.Client, device string) *payloads {
	t.Helper()
	p := &payloads{}
	token := app.Subscribe("$hw/events/device/default/"+device+"/twin/update/delta", 1, func(_ paho.Client, m paho.Message) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.list = append(p.list, string(m.Payload()))
	})
	if !token.WaitTimeout(30 * time.Second) {
		t.Fatal("no SUBACK")
	}
	kit.Must(t, token.Error())
	return p
}

func (g *gateway) override(device, value string) {
	g.Helper()
	code, answer := g.call(http.MethodPut, "/default/"+device+"/override", deviceview.OverrideRequest{Values: map[string]string{"temp": value}, Seconds: 3600, By: "ada"})
	if code != http.StatusOK || !strings.Contains(answer, `"override":{"value":"`+value+`","by":"ada"`) {
		g.Fatalf("override: %d %s", code, answer)
	}
}

func (g *gateway) end(device string) {
	g.Helper()
	if code, answer := g.call(http.MethodDelete, "/default/"+device+"/override", nil); code != http.StatusOK || strings.Contains(answer, "override") {
		g.Fatalf("end: %d %s", code, answer)
	}
}

// An override wins over each desired value of the cloud until it ends, also over a restart. Its begin, its change and its end are reported, and nothing
// between.
func TestOverride_WinsUntilItEnds(t *testing.T) {
	g := newGateway(t)
	g.setModel("INT")
	g.setDevice("a", "edge-1", "20")
	stop := g.start(nil)
	app := g.app(nil)
	deltas := deltasOf(t, app, "a")
	g.publish(app, "a", "20")
	g.reported("a", `"type":"Applied","status":"True"`)
	g.override("a", "30")
	kit.Eventually(t, "the app is told the value", func() bool { return deltas.has(`"delta":{"temp":"30"}`) })
	g.reported("a", `"overrides":{"temp":{"value":"30","by":"ada"`)
	g.publish(app, "a", "30")
	g.reported("a", `"reported":{"value":"30"`)
	g.reported("a", `"reason":"Overridden"`)
	reports := len(g.outbox.reports("a"))
	g.setDevice("b", "edge-1", "1") // reported after all that is due
	g.reported("b", `"Differs"`)
	if n := len(g.outbox.reports("a")); n != reports {
		t.Errorf("%d reports while nothing changes", n-reports)
	}
	g.setDevice("a", "edge-1", "21") // the cloud cannot win
	g.reported("a", `"reason":"Overridden"`)
	stop()
	g.start(nil)
	g.reported("a", `"type":"LocalOverride","status":"True"`)
	again := g.app(nil)
	deltas = deltasOf(t, again, "a")
	g.publish(again, "a", "29")
	kit.Eventually(t, "the app is told the value after a restart", func() bool { return deltas.has(`"delta":{"temp":"30"}`) })
	g.end("a")
	kit.Eventually(t, "the app is told the value of the cloud", func() bool { return deltas.has(`"delta":{"temp":"21"}`) })
	kit.Eventually(t, "the end is reported", func() bool { return !strings.Contains(g.outbox.last("a"), "LocalOverride") })
	if deltas.has(`"delta":{"temp":"20"}`) {
		t.Error("the app is told a value that is not desired any more")
	}
}

// A mapper gets the value, and that of the cloud at the end.
func TestOverride_ReachesTheMapper(t *testing.T) {
	g := newGateway(t)
	dir, err := os.MkdirTemp("", "dmi") //nolint:usetesting // the path of a socket is short
	kit.Must(t, err)
	t.Cleanup(func() { kit.Must(t, os.RemoveAll(dir)) })
	g.start(func(d *config.Devices) { d.DMI = config.DMI{Enabled: true, Dir: dir, AllowHost: true} })
	mappertest.Start(t, mappertest.Build(t, filepath.Join("..", "..")), mappertest.WriteConfig(t, dir))
	g.setModel("INT")
	g.setVirtual("a", "21")
	g.reported("a", `"reported":{"value":"21"`)
	g.override("a", "33")
	g.reported("a", `"reported":{"value":"33"`)
	g.reported("a", `"reason":"Overridden"`)
	g.end("a")
	g.reported("a", `"reported":{"value":"21"`)
	g.reported("a", `"type":"Applied","status":"True"`)
}

// What the model does not allow, what has no end and what is not there is refused, and changes nothing.
func TestOverride_Refusals(t *testing.T) {
	g := newGateway(t)
	g.setModel("INT")
	g.setDevice("a", "edge-1", "20")
	g.setDevice("elsewhere", "edge-2", "20")
	g.start(nil)
	g.reported("a", `"Differs"`)
	request := func(value string, seconds int64, by string) deviceview.OverrideRequest {
		return deviceview.OverrideRequest{Values: map[string]string{"temp": value}, Seconds: seconds, By: by}
	}
	for name, tt := range map[string]struct {
		method, path string
		body         any
		code         int
		says         string
	}{
		"of a wrong type":      {"PUT", "/default/a/override", request("warm", 60, "ada"), 422, "not of the type INT"},
		"no such property":     {"PUT", "/default/a/override", deviceview.OverrideRequest{Values: map[string]string{"x": "1"}, Seconds: 60, By: "ada"}, 422, "no such property"},
		"empty":                {"PUT", "/default/a/override", request("", 60, "ada"), 422, "an empty value is none"},
		"too long a value":     {"PUT", "/default/a/override", request(strings.Repeat("1", 5000), 60, "ada"), 422, "4096 are allowed"},
		"too large a request":  {"PUT", "/default/a/override", request(strings.Repeat("1", 300<<10), 60, "ada"), 400, "too large"},
		"no end":               {"PUT", "/default/a/override", request("1", 0, "ada"), 400, "needs an end"},
		"an end too far":       {"PUT", "/default/a/override", request("1", deviceview.MaxOverrideSeconds+1, "ada"), 400, "needs an end"},
		"nobody":               {"PUT", "/default/a/override", request("1", 60, ""), 400, "who sets the value"},
		"control characters":   {"PUT", "/default/a/override", request("1", 60, "a\nb"), 400, "who sets the value"},
		"no values":            {"PUT", "/default/a/override", deviceview.OverrideRequest{Seconds: 60, By: "ada"}, 400, "no value"},
		"no JSON":              {"PUT", "/default/a/override", "x", 400, "unreadable"},
		"another node's":       {"PUT", "/default/elsewhere/override", request("1", 60, "ada"), 404, "belongs to this gateway"},
		"unknown":              {"GET", "/default/none", nil, 404, "belongs to this gateway"},
		"end of what is not":   {"DELETE", "/default/a/override?property=temp", nil, 400, "is not set on the gateway"},
		"another method":       {"POST", "/default/a/override", nil, 405, ""},
		"all of this gateway":  {"GET", "", nil, 200, `"name":"a"`},
		"one, with its values": {"GET", "/default/a", nil, 200, `"desired":"20"`},
	} {
		t.Run(name, func(t *testing.T) {
			code, answer := g.call(tt.method, tt.path, tt.body)
			if code != tt.code || !strings.Contains(answer, tt.says) || strings.Contains(answer, "elsewhere") && code == http.StatusOK {
				t.Errorf("%d %s, want %d %q", code, answer, tt.code, tt.says)
			}
		})
	}
	if strings.Contains(g.outbox.last("a"), "LocalOverride") {
		t.Error("a refused value is in force")
	}
}
