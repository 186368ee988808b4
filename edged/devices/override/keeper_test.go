package override_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/edged/devices/override"
	"github.com/frond-edge/frond/edged/devices/recordstore"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

var boiler = types.NamespacedName{Namespace: "plant", Name: "boiler"}

const uid = types.UID("u1")

// disk is a store that can fail as a disk does: with or without having written.
type disk struct {
	mu      sync.Mutex
	records map[string][]byte // guarded by mu
	fails   error             // guarded by mu
	writes  bool              // guarded by mu: a Save that fails has written all the same
}

func newDisk() *disk { return &disk{records: map[string][]byte{}} }

func (d *disk) Save(_ context.Context, records map[string][]byte) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails == nil || d.writes {
		for key, raw := range records {
			if d.records[key] = raw; raw == nil {
				delete(d.records, key)
			}
		}
	}
	return d.fails
}

func (d *disk) Load(context.Context) (map[string][]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.records), d.fails
}

func (d *disk) fail(err error, writes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails, d.writes = err, writes
}

// run starts a Keeper on a disk, with a clock that is ahead of the true one, until stop.
func run(t *testing.T, store override.Store, ahead time.Duration) (k *override.Keeper, stop func()) {
	t.Helper()
	k = override.NewKeeper(func(context.Context) (override.Store, error) { return store, nil }, func() time.Time { return time.Now().Add(ahead) }, zap.NewNop())
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- k.Start(ctx) }()
	<-k.Loaded()
	return k, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// values returns the values in force.
func values(k *override.Keeper) map[string]string {
	all := map[string]string{}
	for property, o := range k.Of(boiler, uid) {
		all[property] = o.Value
	}
	return all
}

func check(t *testing.T, k *override.Keeper, when string, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, values(k)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", when, diff)
	}
}

// Each override ends by itself, in its own time, and is gone from the disk then.
func TestKeeper_Ends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		k, stop := run(t, d, 0)
		kit.Must(t, k.Set(t.Context(), boiler, uid, map[string]string{"a": "1", "b": "2"}, time.Hour, "ada"))
		kit.Must(t, k.Set(t.Context(), boiler, uid, map[string]string{"b": "3"}, 2*time.Hour, "bob"))
		check(t, k, "at first", map[string]string{"a": "1", "b": "3"})
		if of := k.Of(boiler, "another"); len(of) != 0 {
			t.Errorf("a Device that was created anew has %v", of)
		}
		<-k.Wake()
		if ids := k.TakeChanged(); len(ids) != 1 || ids[0] != boiler {
			t.Errorf("changed: %v", ids)
		}
		<-time.After(time.Hour - time.Second)
		check(t, k, "before the first end", map[string]string{"a": "1", "b": "3"})
		<-time.After(2 * time.Second)
		check(t, k, "after the first end", map[string]string{"b": "3"})
		<-k.Wake()
		<-time.After(time.Hour)
		check(t, k, "after the second end", map[string]string{})
		synctest.Wait()
		if len(d.records) != 0 {
			t.Errorf("the disk has %q", d.records)
		}
		stop()
	})
}

// After a restart an override lasts as long as was said, never longer than it was set for, whatever the clock says.
func TestKeeper_EndsAfterARestart(t *testing.T) {
	for name, tt := range map[string]struct {
		// off is how long the gateway is off, ahead how far its clock is ahead afterwards.
		off, ahead, lasts time.Duration
	}{
		"in time":             {time.Minute, 0, 59 * time.Minute},
		"too late":            {2 * time.Hour, 0, 0},
		"the clock went back": {time.Minute, -1000 * time.Hour, time.Hour},
		"the clock went on":   {time.Minute, 1000 * time.Hour, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDisk()
				k, stop := run(t, d, 0)
				kit.Must(t, k.Set(t.Context(), boiler, uid, map[string]string{"a": "1"}, time.Hour, "ada"))
				stop()
				<-time.After(tt.off)
				k, stop = run(t, d, tt.ahead)
				defer stop()
				synctest.Wait()
				if tt.lasts == 0 {
					check(t, k, "after the start", map[string]string{})
					return
				}
				<-time.After(tt.lasts - time.Second)
				check(t, k, "before the end", map[string]string{"a": "1"})
				<-time.After(2 * time.Second)
				check(t, k, "after the end", map[string]string{})
			})
		})
	}
}

// An error means that nothing has changed: neither now nor, as soon as the disk takes writes, after a restart.
func TestKeeper_AnErrorChangesNothing(t *testing.T) {
	broken := errors.New("no space left on device")
	for name, writes := range map[string]bool{"not written": false, "written all the same": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDisk()
				k, stop := run(t, d, 0)
				kit.Must(t, k.Set(t.Context(), boiler, uid, map[string]string{"a": "1"}, time.Hour, "ada"))
				d.fail(broken, writes)
				if err := k.End(t.Context(), boiler, uid); !errors.Is(err, override.ErrUncertain) || !errors.Is(err, broken) {
					t.Errorf("end: %v", err)
				}
				check(t, k, "after an end that failed", map[string]string{"a": "1"})
				if err := k.Set(t.Context(), boiler, uid, map[string]string{"a": "2"}, time.Hour, "bob"); !errors.Is(err, override.ErrUncertain) {
					t.Errorf("set: %v", err)
				}
				check(t, k, "after a set that failed", map[string]string{"a": "1"})
				d.fail(nil, false)
				<-time.After(time.Minute) // it is repaired
				stop()
				k, stop = run(t, d, 0)
				check(t, k, "after a restart", map[string]string{"a": "1"})
				stop()
			})
		})
	}
}

// While the disk takes no writes, an override ends all the same.
func TestKeeper_EndsWithoutTheDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDisk()
		k, stop := run(t, d, 0)
		kit.Must(t, k.Set(t.Context(), boiler, uid, map[string]string{"a": "1"}, time.Hour, "ada"))
		d.fail(errors.New("read-only file system"), false)
		<-time.After(time.Hour + time.Second)
		check(t, k, "after the end", map[string]string{})
		d.fail(nil, false)
		<-time.After(time.Minute)
		stop()
		if len(d.records) != 0 {
			t.Errorf("the disk has %q", d.records)
		}
	})
}

// The leaf's disk has an override when Set has returned: an edgecore that was killed then has it again.
func TestKeeper_OnTheLeaf(t *testing.T) {
	nc := leaftest.StartLeaf(t, leaf.Config{}).Client()
	open := func(ctx context.Context) (override.Store, error) {
		return recordstore.Open(ctx, recordstore.Overrides(), nc, zaptest.NewLogger(t))
	}
	start := func() (*override.Keeper, func()) {
		k := override.NewKeeper(open, time.Now, zaptest.NewLogger(t))
		stop := streamstest.StartPart(t, k.Start)
		kit.Receive(t, "loaded", k.Loaded())
		return k, stop
	}
	k, stop := start()
	kit.Must(t, k.Set(t.Context(), boiler, uid, map[string]string{"a": "1", "b": "2"}, time.Hour, "ada"))
	kit.Must(t, k.End(t.Context(), boiler, uid, "a"))
	stop()
	k, stop = start()
	check(t, k, "after a restart", map[string]string{"b": "2"})
	kit.Must(t, k.End(t.Context(), boiler, uid))
	stop()
	k, _ = start()
	check(t, k, "after all have ended", map[string]string{})
}
