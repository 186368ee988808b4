package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/test/kit"
)

// recorder keeps samples in memory, as a gateway's disk does over restarts.
type recorder struct {
	mu      sync.Mutex
	samples []broker.Sample
	err     error
	// full is what CheckWritable returns.
	full error
	// dies: what comes is stored, and then the gateway ends before anybody is told.
	dies bool
}

func (r *recorder) Record(ctx context.Context, samples []broker.Sample) error {
	r.mu.Lock()
	if r.err != nil {
		defer r.mu.Unlock()
		return r.err
	}
	r.samples = append(r.samples, samples...)
	dies := r.dies
	r.mu.Unlock()
	if dies {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (r *recorder) Enqueue(ctx context.Context, samples []broker.Sample) error {
	return r.Record(ctx, samples)
}

func (r *recorder) CheckWritable() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full
}

func (r *recorder) set(err error, dies bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.dies = err, dies
}

func (r *recorder) all() []broker.Sample {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]broker.Sample(nil), r.samples...)
}

// A PUBACK means that the sample is recorded. A gateway that ends after it has stored samples and before it has answered gives no PUBACK: the app sends
// them again, so they are there twice, and none is lost or out of its order.
func TestBridge_RecordsSamplesBeforePUBACK(t *testing.T) {
	store, kept := newTwinStore(), &recorder{}
	b := start(t, store, func(c *broker.Config) { c.Recorder = kept }, "t1")
	app := b.newApp(t)
	const count = 300 // more than are stored at a time
	update := func(value int) paho.Token {
		return app.Publish(device+"t1/twin/update", 1, false, fmt.Sprintf(`{"event_id":"e","timestamp":%d,"twin":{"temp":{"actual":{"value":"%d"}}}}`, value, value))
	}
	wait(t, update(1))
	if n := len(kept.all()); n != 1 {
		t.Fatalf("%d samples are stored at the first PUBACK", n)
	}
	kept.set(nil, true)
	var tokens []paho.Token
	for i := 2; i <= count; i++ {
		tokens = append(tokens, update(i))
	}
	kit.Within(t, 30*time.Second, "some are stored", func() bool { return len(kept.all()) > 1 })
	b.stop()
	stored := len(kept.all())
	if stored == count {
		t.Fatalf("%d of %d samples are stored: the gateway did not end in the middle", stored, count)
	}
	acked := 1
	for _, token := range tokens {
		if token.WaitTimeout(10*time.Second) && token.Error() == nil {
			acked++
		}
	}
	if acked != 1 {
		t.Errorf("%d have a PUBACK that the gateway could not give", acked-1)
	}
	kept.set(nil, false)
	b = start(t, store, func(c *broker.Config) { c.Recorder = kept }, "t1")
	app = b.newApp(t)
	for i := acked + 1; i <= count; i++ {
		tokens[i-2] = update(i)
	}
	for _, token := range tokens {
		wait(t, token)
	}
	for i, s := range kept.all() {
		want := i + 1
		if i >= stored {
			want = i - stored + acked + 1
		}
		if s.Value != fmt.Sprint(want) || s.Time.UnixMilli() != int64(want) || s.Received.IsZero() || s.Device.Name != "t1" || s.Property != "temp" {
			t.Fatalf("sample %d is %+v, want the value %d", i, s, want)
		}
	}
	if n := len(kept.all()); n != stored+count-acked {
		t.Errorf("%d samples, want %d", n, stored+count-acked)
	}
}

// A client that is faster than the gateway stores waits for its PUBACKs. All that it has one for are stored, in order, however many wait on one topic.
func TestBridge_SlowStoreLosesNothing(t *testing.T) {
	kept := &slow{recorder: &recorder{}, release: make(chan struct{})}
	b := launchWith(t, newTwinStore(), func(c *broker.Config) { c.Recorder = kept }, func(s *broker.Server) { s.LimitDevices(rate.Inf, 1) })
	b.setDevice(t, "t1", "", 1)
	b.load(t)
	app := b.newApp(t)
	const count = 5000 // of one topic, where 1,024 wait for apps that are away
	tokens := make(chan paho.Token, count)
	go func() { // Publish waits while the connection takes no more
		defer close(tokens)
		for i := range count {
			tokens <- app.Publish(device+"t1/twin/update", 1, false, fmt.Sprintf(`{"event_id":"e","twin":{"temp":{"actual":{"value":"%d"}}}}`, i))
		}
	}()
	first := <-tokens
	if first.WaitTimeout(time.Second) {
		t.Error("PUBACK for a sample that is not stored")
	}
	close(kept.release)
	wait(t, first)
	for token := range tokens {
		wait(t, token)
	}
	all := kept.all()
	if len(all) != count {
		t.Fatalf("%d of %d samples with a PUBACK are stored", len(all), count)
	}
	for i, s := range all {
		if s.Value != fmt.Sprint(i) {
			t.Fatalf("sample %d has the value %s", i, s.Value)
		}
	}
}

// slow stores nothing before release.
type slow struct {
	*recorder
	release chan struct{}
}

func (s *slow) Record(ctx context.Context, samples []broker.Sample) error {
	select {
	case <-s.release:
		return s.recorder.Record(ctx, samples)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Samples that the twin does not take, because it has a newer value, are samples all the same. One without a time has none.
func TestBridge_RecordsLateSamples(t *testing.T) {
	kept := &recorder{}
	b := start(t, newTwinStore(), func(c *broker.Config) { c.Recorder = kept }, "t1")
	app := b.newApp(t)
	for _, qos := range []byte{1, 0} {
		app.publish(t, device+"t1/twin/update", `{"event_id":"e","timestamp":20,"twin":{"temp":{"actual":{"value":"2"}}}}`, qos)
		app.publish(t, device+"t1/twin/update", `{"event_id":"e","timestamp":10,"twin":{"temp":{"actual":{"value":"1"}}}}`, qos)
		app.publish(t, device+"t1/twin/update", `{"event_id":"e","twin":{"temp":{"actual":{"value":"3"}}}}`, qos)
		app.publish(t, device+"t1/twin/update", `{"event_id":"e","twin":{"temp":null}}`, qos)
	}
	kit.Within(t, 10*time.Second, "all samples", func() bool { return len(kept.all()) == 6 })
	times := map[string]int64{"1": 10, "2": 20}
	for _, s := range kept.all() {
		if want, given := times[s.Value]; given != !s.Time.IsZero() || given && s.Time.UnixMilli() != want {
			t.Errorf("sample %+v", s)
		}
	}
}

// An app is told to send a sample again that could not be stored.
func TestBridge_RecorderFails(t *testing.T) {
	kept := &recorder{err: errors.New("disk full")}
	b := start(t, newTwinStore(), func(c *broker.Config) { c.Recorder = kept }, "t1")
	app := b.newApp(t, device+"t1/twin/update/result")
	const update = `{"event_id":"e","timestamp":5,"twin":{"temp":{"actual":{"value":"21"}}}}`
	app.publish(t, device+"t1/twin/update", update, 1)
	check(t, app.expect(t, device+"t1/twin/update/result"), `{"code":500,"event_id":"e","reason":"the gateway could not store the value; send it again"}`)
	kept.set(nil, false)
	app.publish(t, device+"t1/twin/update", update, 1)
	if got := app.expect(t, device+"t1/twin/update/result"); got["code"] != nil || len(kept.all()) != 1 {
		t.Errorf("after the disk has space: %v", got)
	}
}

// While the disk has room for control state only, an app gets a definite answer, its twin does not change, whatever it repeats, and questions are answered.
// With room again its value is taken.
func TestBridge_RefusesBeforeItChanges(t *testing.T) {
	kept, store := &recorder{}, newTwinStore()
	b := start(t, store, func(c *broker.Config) { c.Recorder = kept }, "t1")
	app := b.newApp(t, device+"t1/twin/update/result", device+"t1/twin/get/result")
	const update = `{"event_id":"e","timestamp":5,"twin":{"temp":{"actual":{"value":"21"}}}}`
	kept.mu.Lock()
	kept.full = errors.New("disk full")
	kept.mu.Unlock()
	store.mu.Lock()
	saves := store.saves
	store.mu.Unlock()
	for range 20 {
		app.publish(t, device+"t1/twin/update", update, 1)
		check(t, app.expect(t, device+"t1/twin/update/result"), `{"code":500,"event_id":"e","reason":"the gateway could not store the value; send it again"}`)
	}
	app.publish(t, device+"t1/twin/get", `{"event_id":"g"}`, 1)
	if got := app.expect(t, device+"t1/twin/get/result"); got["code"] != nil || strings.Contains(text(t, got), "21") {
		t.Errorf("the twin is %v", got)
	}
	store.mu.Lock()
	if n := store.saves - saves; n != 0 {
		t.Errorf("the disk is written %d times", n)
	}
	store.mu.Unlock()
	kept.mu.Lock()
	kept.full = nil
	kept.mu.Unlock()
	app.publish(t, device+"t1/twin/update", update, 1)
	if got := app.expect(t, device+"t1/twin/update/result"); got["code"] != nil || len(kept.all()) != 1 || store.reported(t, "t1") != "21" {
		t.Errorf("with room again: %v", got)
	}
}

// counting counts the calls of each kind.
type counting struct {
	*recorder
	exact, flow atomic.Int64
}

func (c *counting) Record(ctx context.Context, samples []broker.Sample) error {
	c.exact.Add(int64(len(samples)))
	return c.recorder.Record(ctx, samples)
}

func (c *counting) Enqueue(ctx context.Context, samples []broker.Sample) error {
	c.flow.Add(int64(len(samples)))
	return c.recorder.Enqueue(ctx, samples)
}

// What a Device calls flow is answered before it is stored, and stored all the same: some time later, and when the gateway ends. A message with anything else
// is not flow.
func TestBridge_Flow(t *testing.T) {
	store, kept := newTwinStore(), &counting{recorder: &recorder{}}
	b := launch(t, store, func(c *broker.Config) { c.Recorder = kept })
	device1 := &devices.Device{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "t1", UID: "u-t1", Generation: 1, Annotations: map[string]string{"frond.io/durability.temp": "flow"}},
		Spec:       devices.DeviceSpec{NodeName: "edge-1", Properties: []devices.DeviceProperty{{Name: "temp"}, {Name: "mode"}}},
	}
	kit.Must(t, b.SetDevice(t.Context(), devicetwin.NewSpec(device1, nil)))
	b.load(t)
	app := b.newApp(t)
	value := func(properties string) {
		app.publish(t, device+"t1/twin/update", `{"event_id":"e","twin":{`+properties+`}}`, 1)
	}
	for i := range 5 {
		value(fmt.Sprintf(`"temp":{"actual":{"value":"%d"}}`, i))
	}
	if flow, exact := kept.flow.Load(), kept.exact.Load(); flow != 5 || exact != 0 {
		t.Errorf("%d of 5 are flow, %d exact", flow, exact)
	}
	kit.Within(t, 30*time.Second, "the twin is stored", func() bool { return store.reported(t, "t1") == "4" })
	value(`"temp":{"actual":{"value":"5"}},"mode":{"actual":{"value":"on"}}`)
	value(`"temp":{"actual":{"value":"6"},"expected":{"value":"7"}}`)
	value(`"temp":null`)
	if flow, exact := kept.flow.Load(), kept.exact.Load(); flow != 5 || exact != 3 {
		t.Errorf("%d flow and %d exact after messages with other things", flow, exact)
	}
	value(`"temp":{"actual":{"value":"8"}}`)
	if b.stop(); store.reported(t, "t1") != "8" {
		t.Errorf("after the end the twin is %s", store.reported(t, "t1"))
	}
	if all := kept.all(); all[len(all)-1].Value != "8" {
		t.Errorf("the last sample is %s", all[len(all)-1].Value)
	}
}
