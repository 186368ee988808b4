package stream

import (
	"sync/atomic"
	"time"
)

const (
	// growthTrips and growthFloor: a window that was read in less than four round trips, or 40 ms, was too small to measure the link, so
	// it doubles. It settles at four to eight times the bytes in flight at full speed.
	growthTrips = 4
	growthFloor = 40 * time.Millisecond
	// maxTrip bounds a round trip measured while the link was full: otherwise a queue would lead to a longer queue.
	maxTrip = time.Second
)

// window decides how many bytes the peer may send ahead of the reader. It has no clock and no lock.
type window struct {
	size      int
	limit     int
	roundTrip time.Duration // 0: unknown

	readSince time.Time // start of the period that read counts
	readBytes int
}

// recordRead records that n bytes were read and returns by how many bytes the window should grow.
func (w *window) recordRead(n int, now time.Time) int {
	if w.readBytes == 0 {
		w.readSince = now
	}
	w.readBytes += n
	if w.readBytes < w.size {
		return 0
	}
	w.readBytes = 0
	if now.Sub(w.readSince) > max(growthTrips*min(w.roundTrip, maxTrip), growthFloor) {
		return 0
	}
	return min(w.size, w.limit-w.size)
}

// RoundTrip is the shortest measured round trip: a longer one includes time in queues. It takes no lock.
type RoundTrip struct{ least atomic.Int64 }

// Record records a measured round trip and returns the shortest one.
func (t *RoundTrip) Record(measured time.Duration) time.Duration {
	measured = max(measured, 1)
	for {
		least := t.least.Load()
		if least != 0 && time.Duration(least) <= measured {
			return time.Duration(least)
		}
		if t.least.CompareAndSwap(least, int64(measured)) {
			return measured
		}
	}
}

// Pool bounds the growth of windows beyond their initial size, in bytes. It takes no lock.
type Pool struct {
	limit  int64
	parent *Pool // takes the growth too; nil: none
	used   atomic.Int64
}

// NewPool returns a pool whose growth also counts against its parent, if there is one.
func NewPool(limit int, parent *Pool) *Pool { return &Pool{limit: int64(limit), parent: parent} }

// Reserve takes want bytes, or none.
func (p *Pool) Reserve(want int) bool {
	if p == nil {
		return true
	}
	if p.used.Add(int64(want)) <= p.limit && p.parent.Reserve(want) {
		return true
	}
	p.used.Add(-int64(want))
	return false
}

// Release gives bytes back.
func (p *Pool) Release(n int) {
	for ; p != nil; p = p.parent {
		p.used.Add(-int64(n))
	}
}
