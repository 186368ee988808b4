package broker_test

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/test/kit"
)

// check compares a payload with JSON whose keys are sorted.
func check(t testing.TB, got map[string]any, want string) {
	t.Helper()
	if diff := cmp.Diff(want, text(t, got)); diff != "" {
		t.Errorf("payload (-want +got):\n%s", diff)
	}
}

// TestBridge_AnswersAnUpdate is the way of an app of KubeEdge: result, document, delta, in this order.
func TestBridge_AnswersAnUpdate(t *testing.T) {
	for _, qos := range []byte{0, 1, 2} {
		t.Run(fmt.Sprintf("QoS %d", qos), func(t *testing.T) {
			store := newTwinStore()
			b := start(t, store, nil)
			b.setDevice(t, "t1", "30", 1)
			app := connect(t, b.options("app"))
			app.subscribe(t, device+"t1/twin/update/+", min(qos, 1))
			app.publish(t, device+"t1/twin/update", `{"event_id":"e1","timestamp":1000,"twin":{"temp":{"actual":{"value":"21"},"metadata":{"type":"int"}}}}`, qos)
			const actual = `"actual":{"metadata":{"timestamp":1000},"value":"21"}`
			check(t, app.expect(t, device+"t1/twin/update/result"), `{"event_id":"e1","twin":{"temp":{`+actual+`,"metadata":{"type":"int"},"optional":true}}}`)
			if got := store.reported(t, "t1"); got != "21" {
				t.Errorf("the result came before the value was stored: %q", got)
			}
			document := app.expect(t, device+"t1/twin/update/document")["twin"].(map[string]any)["temp"].(map[string]any)
			if document["last"].(map[string]any)["actual"] != nil || text(t, document["current"].(map[string]any)["actual"]) != actual[len(`"actual":`):] {
				t.Errorf("document is %s", text(t, document))
			}
			delta := app.expect(t, device+"t1/twin/update/delta")
			if got := text(t, delta["delta"]); got != `{"temp":"30"}` || len(delta["event_id"].(string)) != 36 {
				t.Errorf("delta is %s", text(t, delta))
			}
			app.publish(t, device+"t1/twin/update", `{"event_id":"e2","timestamp":2000,"twin":{"temp":{"actual":{"value":"30"}}}}`, qos)
			app.expect(t, device+"t1/twin/update/result")
			app.expect(t, device+"t1/twin/update/document")
			app.quiet(t) // no delta
		})
	}
}

func TestBridge_Refuses(t *testing.T) {
	b := start(t, newTwinStore(), nil)
	b.setDevice(t, "t1", "", 1)
	app := b.newApp(t, device+"#")
	for _, tt := range []struct{ name, payload, want, reason string }{
		{"t1", `{"event_id":"e","twin":{"speed":{"actual":{"value":"1"}}}}`, `{"code":400,"event_id":"e","reason":"property speed: the Device default/t1 has no such property"}`, "UnknownProperty"},
		{"t1", `{"event_id":"e","twin":{"temp":{"actual":{"value":"warm"}}}}`, `{"code":400,"event_id":"e","reason":"property temp: the value warm is not of the type INT"}`, "WrongType"},
		{"t1", `{"event_id":"e","twin":{}}`, `{"code":400,"event_id":"e","reason":"the key twin is missing or has no properties"}`, "form"},
		{"t2", `{"event_id":"e","twin":{"temp":{"actual":{"value":"1"}}}}`, `{"code":404,"event_id":"e","reason":"there is no such device on this node: default/t2"}`, "device"},
	} {
		topic := device + tt.name + "/twin/update"
		app.publish(t, topic, tt.payload, 1)
		for range 2 { // our own message comes first
			if m := <-app.received; m.Topic() == topic+"/result" {
				app.received <- m
			}
		}
		check(t, app.expect(t, topic+"/result"), tt.want)
		if got := b.counter(t, "frond_mqtt_refused_total", tt.reason); got != 1 {
			t.Errorf("%s is counted %v times", tt.reason, got)
		}
	}
}

func TestBridge_GetStateAndMembership(t *testing.T) {
	b := start(t, newTwinStore(), nil)
	const node = "$hw/events/node/edge-1/membership/"
	app := b.newApp(t, node+"updated", node+"get/result", device+"t.1/twin/get/result", device+"t.1/state/update/result")

	b.setDevice(t, "t.1", "30", 1)
	added := app.expect(t, node+"updated")
	delete(added, "event_id")
	check(t, added, `{"added_devices":[{"id":"default/t.1","name":"t.1"}],"removed_devices":null}`)

	app.publish(t, device+"t.1/twin/get", `{"event_id":"g"}`, 1)
	got := app.expect(t, device+"t.1/twin/get/result")
	delete(got["twin"].(map[string]any)["temp"].(map[string]any)["expected"].(map[string]any), "metadata") // the time of the message
	check(t, got, `{"event_id":"g","twin":{"temp":{"expected":{"value":"30"},"metadata":{"type":"int"},"optional":true}}}`)

	app.publish(t, device+"t.1/state/update", `{"event_id":"s","timestamp":1795417200000,"state":"asleep"}`, 1) // no answer
	app.publish(t, device+"t.1/state/update", `{"event_id":"s","timestamp":1763881200000,"state":"online"}`, 1)
	state := app.expect(t, device+"t.1/state/update/result")
	if id := state["event_id"]; id == "s" {
		t.Error("the event of a state's result is a new one in KubeEdge")
	}
	delete(state, "event_id")
	check(t, state, `{"device":{"lastOnlineTime":"2025-11-23T07:00:00Z","name":"t.1","state":"online"}}`)

	app.publish(t, node+"get", `{"event_id":"m"}`, 1)
	check(t, app.expect(t, node+"get/result"), `{"devices":[{"id":"default/t.1","last_online":"2025-11-23T07:00:00Z","name":"t.1","state":"online"}],"event_id":"m"}`)

	app.publish(t, device+"t.1/state/update", `{"event_id":"s","timestamp":1763881200001,"state":"OFFLINE"}`, 0)
	check(t, map[string]any{"device": app.expect(t, device+"t.1/state/update/result")["device"]}, `{"device":{"name":"t.1","state":"OFFLINE"}}`)

	kit.Must(t, b.RemoveDevice(t.Context(), types.NamespacedName{Namespace: "default", Name: "t.1"}))
	removed := app.expect(t, node+"updated")
	delete(removed, "event_id")
	check(t, removed, `{"added_devices":null,"removed_devices":[{"id":"default/t.1"}]}`)
	app.publish(t, device+"t.1/twin/get", `{"event_id":"g"}`, 1)
	if got := app.expect(t, device+"t.1/twin/get/result"); got["code"] != 404.0 {
		t.Errorf("a removed device answers %v", got)
	}
}

func TestBridge_DesiredReachesTheApp(t *testing.T) {
	b := start(t, newTwinStore(), nil)
	b.setDevice(t, "t1", "", 1)
	app := connect(t, b.options("app").SetCleanSession(false))
	app.subscribe(t, device+"t1/twin/update/delta", 1)
	other := b.newApp(t)
	other.subscribe(t, device+"t1/twin/update/delta", 0)
	b.setDevice(t, "t1", "30", 2)
	for _, a := range []interface {
		expect(testing.TB, string) map[string]any
	}{app, other} {
		if got := text(t, a.expect(t, device+"t1/twin/update/delta")["delta"]); got != `{"temp":"30"}` {
			t.Errorf("delta is %s", got)
		}
	}
	// An app that is away has the change when it returns.
	app.Disconnect(100)
	b.setDevice(t, "t1", "31", 3)
	app = connect(t, b.options("app").SetCleanSession(false))
	// The one before comes again if its PUBACK did not arrive.
	for got := ""; got != `{"temp":"31"}`; {
		got = text(t, app.expect(t, device+"t1/twin/update/delta")["delta"])
	}
}

func TestBridge_StoreFails(t *testing.T) {
	store := newTwinStore()
	b := start(t, store, nil)
	b.setDevice(t, "t1", "", 1)
	app := b.newApp(t, device+"t1/twin/update/result")
	store.fail(errors.New("disk full"))
	const update = `{"event_id":"e","timestamp":5,"twin":{"temp":{"actual":{"value":"21"}}}}`
	app.publish(t, device+"t1/twin/update", update, 1)
	check(t, app.expect(t, device+"t1/twin/update/result"), `{"code":500,"event_id":"e","reason":"the gateway could not store the value; send it again"}`)
	store.fail(nil)
	app.publish(t, device+"t1/twin/update", update, 1)
	if got := app.expect(t, device+"t1/twin/update/result"); got["code"] != nil || store.reported(t, "t1") != "21" {
		t.Errorf("after the disk has space: %v", got)
	}
}

// TestBridge_RestartKeepsPromises: messages that were not stored before the end have no PUBACK. No client may connect, and nothing is handled, before the
// devices are known.
func TestBridge_RestartKeepsPromises(t *testing.T) {
	store, dir := newTwinStore(), t.TempDir()
	inDir := func(c *broker.Config) { c.Dir = dir }
	b := start(t, store, inDir, "t1")
	app := b.newApp(t)
	update := func(value int) paho.Token {
		return app.Publish(device+"t1/twin/update", 1, false, fmt.Sprintf(`{"event_id":"e","twin":{"temp":{"actual":{"value":"%d"}}}}`, value))
	}
	store.block(true)
	const last = 700 // more than are stored at a time
	var tokens []paho.Token
	for i := range last {
		tokens = append(tokens, update(i+1))
	}
	kit.Within(t, 20*time.Second, "some are on their way", func() bool { return b.counter(t, "frond_mqtt_messages_total", "") > 0 })
	b.stop()
	for _, token := range tokens {
		if token.WaitTimeout(10*time.Second) && token.Error() == nil {
			t.Fatal("PUBACK for a message that is not stored")
		}
	}
	store.block(false)
	b = launch(t, store, inDir)
	if kit.Within(t, 10*time.Second, "the broker listens", func() bool { return b.Addr() != "" }); !refused(t, b.options("early")) {
		t.Error("a client may connect before the devices are known")
	}
	for range 50 { // each passes through the loop that handles messages
		b.setDevice(t, "t3", "", 1)
	}
	if got := b.counter(t, "frond_mqtt_messages_total", ""); got != 0 {
		t.Errorf("%v messages were handled before the devices are known", got)
	}
	b.setDevice(t, "t1", "", 1)
	b.load(t)
	app = b.newApp(t)
	for i := range last {
		tokens[i] = update(i + 1)
	}
	for _, token := range tokens {
		wait(t, token)
	}
	if got := store.reported(t, "t1"); got != fmt.Sprint(last) {
		t.Errorf("the last value with a PUBACK is %d, stored is %s", last, got)
	}
}

// TestBridge_BatchesMessages: messages that come together are stored together.
func TestBridge_BatchesMessages(t *testing.T) {
	store := newTwinStore()
	b := start(t, store, nil)
	const count, each = 20, 50
	for d := range count {
		b.setDevice(t, fmt.Sprintf("d%d", d), "", 1)
	}
	before := store.saves
	app := b.newApp(t)
	for i := range each {
		for d := range count {
			app.Publish(fmt.Sprintf("%sd%d/twin/update", device, d), 1, false, fmt.Sprintf(`{"event_id":"e","timestamp":%d,"twin":{"temp":{"actual":{"value":"%d"}}}}`, 1000+i, i))
		}
	}
	for d := range count {
		kit.Within(t, 20*time.Second, "the last value is stored", func() bool { return store.reported(t, fmt.Sprintf("d%d", d)) == fmt.Sprint(each-1) })
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	if saves := store.saves - before; saves > count*each/2 {
		t.Errorf("%d messages needed %d writes", count*each, saves)
	}
	if got := b.counter(t, "frond_mqtt_messages_total", "twin/update"); got != count*each {
		t.Errorf("%v messages are counted", got)
	}
}

func TestBridge_LimitsADevice(t *testing.T) {
	b := launchWith(t, newTwinStore(), nil, func(s *broker.Server) { s.LimitDevices(1, 50) }) // fewer than the slowest machine sends
	b.setDevice(t, "t1", "", 1)
	b.setDevice(t, "t2", "", 1)
	b.load(t)
	app := b.newApp(t, device+"t2/twin/get/result")
	const sent = 200
	for range sent {
		app.Publish(device+"t1/twin/get", 1, false, `{"event_id":"e"}`)
	}
	app.publish(t, device+"t2/twin/get", `{"event_id":"other"}`, 1)
	app.expect(t, device+"t2/twin/get/result")
	kit.Within(t, 20*time.Second, "messages over the limit are counted", func() bool { return b.counter(t, "frond_mqtt_refused_total", "rate") > 0 })
}

// TestBridge_Mosquitto uses the clients that people type.
func TestBridge_Mosquitto(t *testing.T) {
	for _, program := range []string{"mosquitto_pub", "mosquitto_sub"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("no %s (package mosquitto-clients)", program)
		}
	}
	b := start(t, newTwinStore(), nil)
	b.setDevice(t, "t1", "", 1)
	host, port, _ := strings.Cut(b.Addr(), ":")
	result := make(chan string, 1)
	watcher := b.newApp(t, device+"t1/twin/get/result") // subscribed before, as proof that the answer is sent
	sub := exec.CommandContext(t.Context(), "mosquitto_sub", "-h", host, "-p", port, "-q", "1", "-C", "1", "-W", "10", "-i", "sub", "-c", "-t", device+"t1/twin/get/result")
	go func() {
		out, err := sub.CombinedOutput()
		result <- fmt.Sprint(string(out), err)
	}()
	got := ""
	kit.Within(t, 20*time.Second, "mosquitto_sub has an answer", func() bool {
		out, err := exec.CommandContext(t.Context(), "mosquitto_pub", "-h", host, "-p", port, "-q", "1", "-t", device+"t1/twin/get", "-m", `{"event_id":"m"}`).CombinedOutput()
		if err != nil {
			t.Fatalf("mosquitto_pub: %v\n%s", err, out)
		}
		watcher.expect(t, device+"t1/twin/get/result")
		select {
		case got = <-result:
			return true
		default:
			return false
		}
	})
	if !strings.Contains(got, `"event_id":"m"`) {
		t.Errorf("mosquitto_sub printed %s", got)
	}
}
