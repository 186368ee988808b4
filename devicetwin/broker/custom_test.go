package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/devicetwin/messages"
	"github.com/frond-edge/frond/test/kit"
)

// disk keeps messages in memory, as a gateway's disk does. While it stands still it answers nothing.
type disk struct {
	mu      sync.Mutex
	stored  []messages.Message // guarded by mu
	waiting []func()           // guarded by mu; what it will do when it goes on
	still   bool               // guarded by mu
	err     error              // guarded by mu
}

func (d *disk) Enqueue(_ context.Context, m messages.Message) (<-chan error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	done := make(chan error, 1)
	store := func() {
		if d.err == nil {
			d.stored = append(d.stored, m)
		}
		done <- d.err
	}
	if d.still {
		d.waiting = append(d.waiting, store)
	} else {
		store()
	}
	return done, nil
}

func (d *disk) set(still bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.still, d.err = still, err; !still {
		for _, store := range d.waiting {
			store()
		}
		d.waiting = nil
	}
}

func (d *disk) payloads() (all []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, m := range d.stored {
		all = append(all, string(m.Payload))
	}
	return all
}

// startCustom runs a broker that stores the messages of custom topics on a disk.
func startCustom(t *testing.T, d *disk, change func(*broker.Config)) *running {
	t.Helper()
	reg := prometheus.NewRegistry()
	gate, err := messages.NewGate(d, 1<<10, reg, zap.NewNop())
	kit.Must(t, err)
	r := start(t, newTwinStore(), func(c *broker.Config) {
		c.Custom = gate
		if change != nil {
			change(c)
		}
	}, "t1")
	kit.Must(t, r.metrics.Register(reg))
	return r
}

// result returns how many messages had a result.
func (r *running) result(t *testing.T, want string) (sum float64) {
	t.Helper()
	families, err := r.metrics.Gather()
	kit.Must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if f.GetName() == "frond_mqtt_custom_messages_total" && l.GetName() == "result" && l.GetValue() == want {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// Messages on the custom topics are stored in their order, of each QoS, and reach apps of the gateway that subscribe.
func TestCustom_StoredInOrder(t *testing.T) {
	d := &disk{}
	b := startCustom(t, d, nil)
	app, local := b.newApp(t), b.newApp(t, "a/user/#")
	for i, topic := range []string{"a/user/x", "a/user", "SYS/dis/upload_records", "$hw/events/upload/x/y", "a/user/b.c//d", "a/user/x"} {
		app.publish(t, topic, fmt.Sprint(i), byte(i%3))
	}
	kit.Within(t, 20*time.Second, "all messages", func() bool { return len(d.payloads()) == 6 })
	topics := map[string]bool{}
	for _, m := range d.stored {
		topics[m.Topic] = true
	}
	if !topics["a/user/b.c//d"] || !topics["a/user"] || !topics["$hw/events/upload/x/y"] || !topics["SYS/dis/upload_records"] {
		t.Errorf("topics %v", topics)
	}
	for range 4 {
		select {
		case m := <-local.received:
			if !strings.HasPrefix(m.Topic(), "a/user") {
				t.Errorf("a message of %s", m.Topic())
			}
		case <-time.After(10 * time.Second):
			t.Fatal("an app that subscribes misses a message")
		}
	}
	for i := range 500 {
		app.Publish("a/user/x", 1, false, fmt.Sprint(6+i))
	}
	kit.Within(t, 20*time.Second, "all messages", func() bool { return len(d.payloads()) == 506 })
	for i, got := range d.payloads()[6:] {
		if got != fmt.Sprint(6+i) {
			t.Fatalf("message %d is %s", 6+i, got)
		}
	}
}

// A PUBACK means that the message is on the disk. While that stands still, longer than any wait of the broker, devices are answered, and nothing is
// stored twice afterwards.
func TestCustom_DiskStandsStill(t *testing.T) {
	d := &disk{still: true}
	b := startCustom(t, d, nil)
	app, other := b.newApp(t), b.newApp(t, device+"t1/twin/get/result")
	var tokens []paho.Token
	for i := range 50 {
		tokens = append(tokens, app.Publish("a/user/x", 1, false, fmt.Sprint(i)))
	}
	other.publish(t, device+"t1/twin/get", `{"event_id":"e"}`, 1)
	other.expect(t, device+"t1/twin/get/result")
	if tokens[0].WaitTimeout(6 * time.Second) { // longer than ackWait and redelivery
		t.Fatal("PUBACK for a message that is not on the disk")
	}
	d.set(false, nil)
	for _, token := range tokens {
		wait(t, token)
	}
	all := d.payloads()
	if len(all) != 50 {
		t.Errorf("%d messages of 50", len(all))
	}
	for i, got := range all {
		if got != fmt.Sprint(i) {
			t.Fatalf("message %d is %s", i, got)
		}
	}
}

// A message that is not kept has no PUBACK: one that is too large, and one that the disk refuses. It is counted.
func TestCustom_RefusedHasNoPUBACK(t *testing.T) {
	d := &disk{}
	b := startCustom(t, d, nil)
	b.newApp(t).Publish("a/user/x", 1, false, strings.Repeat("x", 1<<10+1))
	kit.Within(t, 10*time.Second, "the large message is counted", func() bool { return b.result(t, "refused") == 1 })
	d.set(false, errors.New("no space"))
	app := b.newApp(t)
	token := app.Publish("a/user/x", 1, false, "1")
	kit.Within(t, 10*time.Second, "the failure is counted", func() bool { return b.result(t, "failed") == 1 })
	kit.Within(t, 10*time.Second, "the connection is closed", func() bool { return !app.IsConnectionOpen() })
	if token.WaitTimeout(time.Millisecond) && token.Error() == nil {
		t.Error("PUBACK for a message that the disk refused")
	}
	d.set(false, nil)
	kit.Within(t, 20*time.Second, "a message after the disk has space", func() bool {
		token := b.newApp(t).Publish("a/user/x", 1, false, "2")
		return token.WaitTimeout(5*time.Second) && token.Error() == nil
	})
	for _, got := range d.payloads() {
		if got != "2" {
			t.Errorf("%.10s is stored", got)
		}
	}
}

// A topic that nothing reads is answered, counted and not stored: a wildcard at the start of a filter does not match "$".
func TestCustom_UnclaimedIsCounted(t *testing.T) {
	d := &disk{}
	b := startCustom(t, d, nil)
	b.newApp(t).publish(t, "$hw/user/x", "1", 1)
	if b.result(t, "unclaimed") != 1 || len(d.payloads()) != 0 {
		t.Errorf("%v counted, %v stored", b.result(t, "unclaimed"), d.payloads())
	}
}

// A user publishes below its own name, and its messages have it; nobody else may.
func TestCustom_BelongsToItsUser(t *testing.T) {
	d := &disk{}
	b := startCustom(t, d, func(c *broker.Config) { c.Users = []broker.User{newUser(t, "line3"), newUser(t, "line4")} })
	line3 := connect(t, b.as("line3", "line3"))
	line3.publish(t, "line4/user/x", "theft", 1) // MQTT 3.1.1 has no refusal: PUBACK, and nothing happens
	line3.publish(t, "$hw/events/upload/x", "theft", 1)
	b.newApp(t).publish(t, "line3/user/x", "theft", 1)
	line3.publish(t, "line3/user/x", "own", 1)
	b.newApp(t).publish(t, "any/user/x", "anonymous", 1)
	got := d.payloads()
	if len(got) != 2 || got[0] != "own" || got[1] != "anonymous" || d.stored[0].User != "line3" || d.stored[1].User != "" {
		t.Errorf("stored: %v, %+v", got, d.stored)
	}
}

// A store that stands still for longer than the broker waits for acknowledgements, and fails then, doubles nothing: the apps were told to send again.
func TestBridge_StalledStoreDoublesNothing(t *testing.T) {
	kept := &stalling{recorder: &recorder{}, release: make(chan struct{})}
	b := start(t, newTwinStore(), func(c *broker.Config) { c.Recorder = kept }, "t1")
	app := b.newApp(t, device+"t1/twin/update/result")
	const count = 40
	for i := range count {
		app.Publish(device+"t1/twin/update", 1, false, fmt.Sprintf(`{"event_id":"e","timestamp":%d,"twin":{"temp":{"actual":{"value":"%d"}}}}`, i+1, i))
	}
	timer := time.AfterFunc(7*time.Second, func() { close(kept.release) }) // ackWait is 5 s
	defer timer.Stop()
	results := map[string]int{}
	for range count {
		got := app.expect(t, device+"t1/twin/update/result")
		results[fmt.Sprint(got["code"])]++
	}
	app.quiet(t)
	if results["500"] == 0 {
		t.Fatalf("results %v: the store has not failed", results)
	}
	if n := len(kept.all()); n != results["<nil>"] {
		t.Errorf("%d samples are stored, %d were answered without an error", n, results["<nil>"])
	}
}

// stalling fails the first Record after release, and keeps the others.
type stalling struct {
	*recorder
	release chan struct{}
	once    sync.Once
}

func (s *stalling) Record(ctx context.Context, samples []broker.Sample) (err error) {
	s.once.Do(func() {
		<-s.release
		err = errors.New("the disk stood still")
	})
	if err != nil {
		return err
	}
	return s.recorder.Record(ctx, samples)
}
