package heaprelease

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
)

func TestShouldRelease(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(after time.Duration, allocated, held uint64) sample {
		return sample{at: start.Add(after), allocated: allocated, held: held}
	}
	released := at(0, 100<<20, 20<<20)
	for name, tt := range map[string]struct {
		released, previous, now sample
		want                    bool
	}{
		"grown and calm":            {released, at(110*time.Second, 200<<20, 40<<20), at(120*time.Second, 201<<20, 40<<20), true},
		"calm, first time":          {sample{}, at(0, 50<<20, 30<<20), at(10*time.Second, 51<<20, 30<<20), true},
		"in the middle of a burst":  {released, at(110*time.Second, 200<<20, 40<<20), at(120*time.Second, 220<<20, 44<<20), false},
		"hardly grown":              {released, at(110*time.Second, 101<<20, 21<<20), at(120*time.Second, 102<<20, 23<<20), false},
		"smaller than at a release": {released, at(110*time.Second, 101<<20, 15<<20), at(120*time.Second, 102<<20, 16<<20), false},
		"soon after a release":      {released, at(20*time.Second, 200<<20, 40<<20), at(30*time.Second, 201<<20, 40<<20), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := shouldRelease(tt.released, tt.previous, tt.now); got != tt.want {
				t.Errorf("release: %t, want %t", got, tt.want)
			}
		})
	}
}

func TestReleaser_ReturnsWhatABurstLeft(t *testing.T) {
	r := New(zaptest.NewLogger(t))
	now := time.Now()
	r.step(now) // what the start of the test left
	r.last = readSample(now)
	before := r.released.held
	const burst = 64 << 20
	block := make([]byte, burst)
	for i := 0; i < burst; i += 4096 {
		block[i] = 1
	}
	runtime.KeepAlive(block)
	r.step(now.Add(2 * minPause)) // the burst is not over
	if held := readSample(now).held; held < before+burst {
		t.Fatalf("the heap holds %d bytes in the burst, %d before", held, before)
	}
	r.step(now.Add(2*minPause + samplePeriod))
	if held := r.released.held; held > before+minGain {
		t.Errorf("the heap holds %d bytes after the release, %d before the burst", held, before)
	}
}

// Garbage is collected earlier than by default, unless the user has decided.
func TestLimitGarbage_LeavesTheUsersChoice(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	LimitGarbage("300")
	if got := debug.SetGCPercent(100); got != 100 {
		t.Errorf("with GOGC set: %d, want 100", got)
	}
	LimitGarbage("")
	if got := debug.SetGCPercent(100); got != gcPercent {
		t.Errorf("without: %d, want %d", got, gcPercent)
	}
}
