package streams

import (
	"context"
	"sync"
	"time"
)

// sendWindow is what may be on its way to the hub at a time: as much as the link is believed to carry in a moment, or one message.
// Answers to pings and probes wait no longer than that behind reports.
type sendWindow struct {
	bandwidth *bandwidthEstimator
	// released has a token when something has left since somebody waited.
	released chan struct{}

	mu            sync.Mutex
	acquiredBytes int // guarded by mu
}

// acquire waits until there is room for so many bytes.
func (r *sendWindow) acquire(ctx context.Context, size int) (inFlightReport, error) {
	for {
		if queue, ok := r.tryAcquire(size); ok {
			return inFlightReport{size: size, queuedBytes: queue, sentAt: time.Now()}, nil
		}
		select {
		case <-r.released:
		case <-ctx.Done():
			return inFlightReport{}, ctx.Err()
		}
	}
}

func (r *sendWindow) tryAcquire(size int) (queue int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.acquiredBytes > 0 && r.acquiredBytes+size > r.bandwidth.budget() {
		return 0, false
	}
	r.acquiredBytes += size
	return r.acquiredBytes, true
}

// release makes room. How long an acked message took tells what the link carries.
func (r *sendWindow) release(f inFlightReport, acked bool) {
	if acked {
		r.bandwidth.observeReply(f.queuedBytes, time.Since(f.sentAt))
	}
	r.mu.Lock()
	r.acquiredBytes -= f.size
	r.mu.Unlock()
	select {
	case r.released <- struct{}{}:
	default:
	}
}
