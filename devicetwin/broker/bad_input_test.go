package broker_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/test/kit"
)

// TestBadInput_PayloadsAreAnswered: what is not KubeEdge's JSON is answered with 400 on the topic of the device that it came for, and changes nothing.
func TestBadInput_PayloadsAreAnswered(t *testing.T) {
	store := newTwinStore()
	b := start(t, store, nil, "t1")
	app := b.newApp(t, device+"t1/twin/update/result", device+"t1/twin/get/result", device+"t1/state/update/result")
	app.publish(t, device+"t1/twin/update", `{"event_id":"first","twin":{"temp":{"actual":{"value":"20"}}}}`, 1)
	app.expect(t, device+"t1/twin/update/result")
	for _, payload := range []string{
		"", "null", "{", "[]", `"x"`, "7", "\xff\xfe", `{"twin":null}`, `{"twin":[]}`, `{"twin":{"temp":7}}`, `{"twin":{"temp":{"actual":{"value":21}}}}`,
		`{"twin":{"temp":{"actual":"21"}}}`, `{"event_id":{},"twin":{"temp":{"actual":{"value":"21"}}}}`, strings.Repeat("[", 100_000),
		`{"twin":{"temp":{"actual":{"value":"21","metadata":{"timestamp":"now"}}}}}`, `{"twin":{"temp":{"actual":{"value":"warm"}}}}`,
		`{"twin":{"temp":{"actual":{"value":"21"}},"speed":{"actual":{"value":"1"}}}}`, // one of two is unknown: neither is taken
	} {
		app.publish(t, device+"t1/twin/update", payload, 1)
		if got := app.expect(t, device+"t1/twin/update/result"); got["code"] != 400.0 || got["reason"] == "" {
			t.Errorf("%.40q is answered with %v", payload, got)
		}
	}
	for _, payload := range []string{"", "null", "[", "7"} {
		app.publish(t, device+"t1/twin/get", payload, 1)
		if got := app.expect(t, device+"t1/twin/get/result"); payload != "null" && got["code"] != 400.0 { // null is an envelope without event_id
			t.Errorf("get with %q is answered with %v", payload, got)
		}
	}
	for _, payload := range []string{"", "null", "{", `{"state":7}`, `{"state":"asleep"}`, `{"state":null}`} {
		app.publish(t, device+"t1/state/update", payload, 1) // without an answer, as in KubeEdge
	}
	if got := store.reported(t, "t1"); got != "20" {
		t.Errorf("the value is %q", got)
	}
	app.publish(t, device+"t1/twin/update", `{"event_id":"last","twin":{"temp":{"actual":{"value":"22"}}}}`, 1)
	if got := app.expect(t, device+"t1/twin/update/result"); got["event_id"] != "last" || got["code"] != nil {
		t.Errorf("the next good one is answered with %v", got)
	}
	kit.Within(t, 20*time.Second, "what was refused is counted", func() bool { return b.counter(t, "frond_mqtt_refused_total", "form") >= 20 })
}

// TestBadInput_TwinOf10MB: a client that sends such a packet is cut off, and others are served.
func TestBadInput_TwinOf10MB(t *testing.T) {
	b := start(t, newTwinStore(), nil, "t1")
	lost := make(chan struct{})
	large := connect(t, b.options("large").SetConnectionLostHandler(func(paho.Client, error) { close(lost) }))
	large.Publish(device+"t1/twin/update", 1, false, `{"event_id":"e","twin":{"temp":{"actual":{"value":"`+strings.Repeat("9", 10<<20)+`"}}}}`)
	kit.Receive(t, "the end of a client with a packet of 10 MB", lost)
	other := b.newApp(t, device+"t1/twin/update/result")
	other.publish(t, device+"t1/twin/update", `{"event_id":"other","twin":{"temp":{"actual":{"value":"1"}}}}`, 1)
	if got := other.expect(t, device+"t1/twin/update/result"); got["event_id"] != "other" || got["code"] != nil {
		t.Errorf("another is answered with %v", got)
	}
}

// halfPacket is the beginning of CONNECT of MQTT 3.1.1.
const halfPacket = "\x10\x0d\x00\x04MQTT"

// TestBadInput_TenThousandConnects: ten thousand connections that send nothing, garbage or half a packet and go away. A connected device is served
// meanwhile, and a new one afterwards.
func TestBadInput_TenThousandConnects(t *testing.T) {
	b := start(t, newTwinStore(), func(c *broker.Config) { c.MaxClients = 64 }, "t1")
	first := b.newApp(t, device+"t1/twin/get/result")
	var next atomic.Int64
	var dialers sync.WaitGroup
	for range 32 {
		dialers.Go(func() {
			for {
				n := next.Add(1)
				if n > 10_000 {
					return
				}
				conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", b.Addr())
				if err != nil {
					continue // refused: that is an answer, too
				}
				switch n % 3 {
				case 0:
					_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
				case 1:
					_, _ = io.WriteString(conn, halfPacket)
				}
				_ = conn.Close()
			}
		})
	}
	served := 0
	for next.Load() < 10_000 {
		first.publish(t, device+"t1/twin/get", `{"event_id":"meanwhile"}`, 1)
		first.expect(t, device+"t1/twin/get/result")
		served++
	}
	dialers.Wait()
	t.Logf("%d requests were answered meanwhile", served)
	late := b.newApp(t, device+"t1/twin/get/result")
	late.publish(t, device+"t1/twin/get", `{"event_id":"late"}`, 1)
	if got := late.expect(t, device+"t1/twin/get/result"); got["event_id"] == "" {
		t.Errorf("got %v", got)
	}
}
