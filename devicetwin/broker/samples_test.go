package broker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/test/kit"
)

// recorder keeps samples in memory, as a gateway's disk does over restarts.
type recorder struct {
	mu      sync.Mutex
	samples []broker.Sample
	origin  broker.Origin
	err     error
	// full is what CheckWritable returns.
	full error
	// dies: what comes is stored, and then the gateway ends before anybody is told.
	dies bool
}

func (r *recorder) Record(ctx context.Context, origin broker.Origin, samples []broker.Sample) error {
	r.mu.Lock()
	if r.err != nil {
		defer r.mu.Unlock()
		return r.err
	}
	r.samples = append(r.samples, samples...)
	if origin != (broker.Origin{}) {
		r.origin = origin
	}
	dies := r.dies
	r.mu.Unlock()
	if dies {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (r *recorder) CheckWritable() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.full
}

func (r *recorder) Recorded() broker.Origin {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.origin
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

// A gateway that ends after it has stored samples and before it has acknowledged their messages stores each once and in order: those come again,
// before newer ones.
func TestBridge_RecordsSamplesOnceInOrder(t *testing.T) {
	store, dir, kept := newTwinStore(), t.TempDir(), &recorder{}
	configure := func(c *broker.Config) { c.Dir, c.Recorder = dir, kept }
	b := start(t, store, configure, "t1")
	app := b.newApp(t)
	update := func(value int) {
		t.Helper()
		app.publish(t, device+"t1/twin/update", fmt.Sprintf(`{"event_id":"e","timestamp":%d,"twin":{"temp":{"actual":{"value":"%d"}}}}`, value, value), 1)
	}
	update(1)
	kit.Within(t, 10*time.Second, "the first sample", func() bool { return len(kept.all()) == 1 })
	kept.set(nil, true)
	const last = 300 // more than are pulled at a time
	for i := 2; i <= last; i++ {
		update(i)
	}
	b.stop()
	if n := len(kept.all()); n < 2 || n == last {
		t.Fatalf("%d of %d samples are stored: the gateway did not end in the middle", n, last)
	}
	kept.set(nil, false)
	b = start(t, store, configure, "t1")
	app = b.newApp(t)
	update(last + 1)
	kit.Within(t, 30*time.Second, "the last sample", func() bool { all := kept.all(); return all[len(all)-1].Value == fmt.Sprint(last+1) })
	for i, s := range kept.all() {
		if want := i + 1; s.Value != fmt.Sprint(want) || s.Time.UnixMilli() != int64(want) || s.Received.IsZero() || s.Device.Name != "t1" || s.Property != "temp" {
			t.Fatalf("sample %d is %+v", i, s)
		}
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
