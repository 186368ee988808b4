// Package heaprelease returns memory to the operating system that a burst of work has left behind, once the process is calm.
//
// Go collects garbage when the heap has doubled since the last collection, or two minutes after it, and keeps freed pages for the next
// burst. A gateway works in bursts: after a thousand objects have arrived, some 20 MB of garbage stay until something else happens. The pods
// beside edgecore can use that memory.
package heaprelease

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"go.uber.org/zap"
)

const (
	// samplePeriod is how long the process must have been calm.
	samplePeriod = 10 * time.Second
	// calmAllocations is what a calm process allocates at most within a samplePeriod, in bytes: the kubelet alone allocates some MB.
	calmAllocations = 10 << 20
	// minGain is how many bytes the heap must have grown since the last release to be worth a collection, which costs some 20 ms of CPU.
	minGain = 4 << 20
	// minPause is the shortest time between two releases, which bounds their cost at about 0.03 % of a processor.
	minPause = time.Minute
	// gcPercent is how much the heap may grow until the next collection. Against Go's 100 it saves 1 MB idle, 8 MB with five pods and 12 MB
	// after 1,000 ConfigMaps, for at most 2 % more CPU per delivery; 30 saves 1 to 3 MB more (docs/operations/numbers.md).
	gcPercent = 50
)

// LimitGarbage makes Go collect garbage earlier than by default, unless the environment's GOGC, which is given, sets it.
func LimitGarbage(gogc string) {
	if gogc == "" {
		debug.SetGCPercent(gcPercent)
	}
}

// A sample is the state of the heap at one time, in bytes.
type sample struct {
	at time.Time
	// allocated counts all allocations since the start of the process.
	allocated uint64
	// held is what the heap holds of the operating system's memory: objects, also dead ones, and free space.
	held uint64
}

// A Releaser collects garbage and returns freed memory when the process is calm. Its Start is its only user of its fields.
type Releaser struct {
	log  *zap.Logger
	last sample
	// released is the state after the last release, zero before the first.
	released sample
}

// New returns a releaser.
func New(log *zap.Logger) *Releaser { return &Releaser{log: log} }

// Start samples the heap until ctx ends, and then returns nil.
func (r *Releaser) Start(ctx context.Context) error {
	ticker := time.NewTicker(samplePeriod)
	defer ticker.Stop()
	r.last = readSample(time.Now())
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-ticker.C:
			r.step(now)
		}
	}
}

func (r *Releaser) step(now time.Time) {
	current := readSample(now)
	if shouldRelease(r.released, r.last, current) {
		debug.FreeOSMemory()
		r.released = readSample(now)
		r.log.Debug("returned memory to the operating system", zap.Uint64("before", current.held), zap.Uint64("after", r.released.held))
		current = r.released
	}
	r.last = current
}

// shouldRelease decides, by the state after the last release, the state one samplePeriod ago, and that of now.
func shouldRelease(released, previous, now sample) bool {
	calm := now.allocated-previous.allocated <= calmAllocations
	worthIt := now.held > released.held+minGain
	return calm && worthIt && now.at.Sub(released.at) >= minPause
}

func readSample(at time.Time) sample {
	values := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(values)
	s := sample{at: at, allocated: values[0].Value.Uint64()}
	for _, v := range values[1:] {
		s.held += v.Value.Uint64()
	}
	return s
}
