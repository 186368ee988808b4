package scoperegistry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

const bucketName = "scopes-test"

// watched is what a watch has reported.
type watched struct {
	mu sync.Mutex
	// Guarded by mu.
	values map[string]string
	calls  int
	alls   int
}

func (w *watched) each(node string, value []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls++
	if value == nil {
		delete(w.values, node)
		return
	}
	w.values[node] = string(value)
}

func (w *watched) all() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.alls++
}

func (w *watched) read() (values map[string]string, calls, alls int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	values = map[string]string{}
	maps.Copy(values, w.values)
	return values, w.calls, w.alls
}

func newBucket(t *testing.T) (jetstream.JetStream, jetstream.KeyValue) {
	t.Helper()
	js, err := jetstream.New(streamstest.Connect(t, streamstest.Hub(t)))
	if err != nil {
		t.Fatal(err)
	}
	return js, createBucket(t, js)
}

func createBucket(t *testing.T, js jetstream.JetStream) jetstream.KeyValue {
	t.Helper()
	kv, err := js.CreateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: bucketName})
	if err != nil {
		t.Fatal(err)
	}
	return kv
}

// follow runs a watch until the test ends.
func follow(t *testing.T, r Registry) *watched {
	t.Helper()
	w := &watched{values: map[string]string{}}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			_ = r.Watch(ctx, w.each, w.all) // as its caller does, it watches again
		}
	}()
	t.Cleanup(func() {
		cancel()
		kit.Receive(t, "the watch ends", ended)
	})
	return w
}

func put(t *testing.T, r Registry, node, value string) {
	t.Helper()
	_, revision, err := r.Get(t.Context(), node)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Put(t.Context(), node, []byte(value), revision); err != nil {
		t.Fatal(err)
	}
}

// awaitRenewals waits until a number of further watches have begun, which the hub shows as consumers with higher creation times.
func awaitRenewals(t *testing.T, js jetstream.JetStream, count int) {
	t.Helper()
	seen := map[string]bool{}
	kit.Eventually(t, fmt.Sprint(count, " further watches"), func() bool {
		stream, err := js.Stream(t.Context(), "KV_"+bucketName)
		if err != nil {
			return false
		}
		for name := range stream.ConsumerNames(t.Context()).Name() {
			seen[name] = true
		}
		return len(seen) > count
	})
}

// An entry is read once, not by each watch again; changes and removals are reported.
func TestRegistry_WatchReadsEachEntryOnce(t *testing.T) {
	js, kv := newBucket(t)
	r := Registry{kv: kv, renewEvery: 50 * time.Millisecond}
	for i := range 20 {
		put(t, r, fmt.Sprint("gw-", i), "1")
	}
	w := follow(t, r)
	kit.Eventually(t, "all entries", func() bool { _, calls, alls := w.read(); return calls == 20 && alls == 1 })
	awaitRenewals(t, js, 4)
	put(t, r, "gw-3", "2")
	kit.Eventually(t, "the change", func() bool { values, _, _ := w.read(); return values["gw-3"] == "2" })
	awaitRenewals(t, js, 4)
	_, revision, err := r.Get(t.Context(), "gw-4")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), "gw-4", revision); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "the removal", func() bool { values, _, _ := w.read(); return len(values) == 19 })
	awaitRenewals(t, js, 4)
	if _, calls, alls := w.read(); calls != 22 || alls != 1 {
		t.Errorf("%d entries reported, %d times all; want 22, once", calls, alls)
	}
	if err := r.Put(t.Context(), "gw-3", []byte("3"), 1); !errors.Is(err, wire.ErrConflict) {
		t.Errorf("a value of another revision was replaced: %v", err)
	}
}

// A watch that has ended silently with its server is followed by one that reports what was missed.
func TestRegistry_WatchSurvivesTheEndOfItsConsumer(t *testing.T) {
	js, kv := newBucket(t)
	r := Registry{kv: kv, renewEvery: 300 * time.Millisecond}
	put(t, r, "gw-1", "1")
	w := follow(t, r)
	kit.Eventually(t, "the entry", func() bool { _, calls, _ := w.read(); return calls == 1 })
	stream, err := js.Stream(t.Context(), "KV_"+bucketName)
	if err != nil {
		t.Fatal(err)
	}
	for name := range stream.ConsumerNames(t.Context()).Name() {
		_ = stream.DeleteConsumer(t.Context(), name) // it may have been followed already
	}
	put(t, r, "gw-1", "2")
	kit.Eventually(t, "the change", func() bool { values, _, _ := w.read(); return values["gw-1"] == "2" })
}

// A bucket that was lost and is new has lower revisions: all of it is read.
func TestRegistry_WatchReadsAReplacedBucket(t *testing.T) {
	js, kv := newBucket(t)
	r := Registry{kv: kv, renewEvery: 50 * time.Millisecond}
	for i := range 20 {
		put(t, r, "gw-1", fmt.Sprint(i))
	}
	w := follow(t, r)
	kit.Eventually(t, "the entry", func() bool { values, _, _ := w.read(); return values["gw-1"] == "19" })
	if err := js.DeleteKeyValue(t.Context(), bucketName); err != nil {
		t.Fatal(err)
	}
	r.kv = createBucket(t, js)
	put(t, r, "gw-2", "new")
	kit.Eventually(t, "the entry of the new bucket", func() bool { values, _, _ := w.read(); return values["gw-2"] == "new" })
}
