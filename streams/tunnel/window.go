package tunnel

import "time"

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
