package outbox

import (
	"context"
	"sync"
	"time"

	"github.com/frond-edge/frond/streams/internal/flow"
)

// sendWindow limits the bytes in flight to the hub to the estimate of what the link carries in a moment, or to one message. Replies to
// pings and probes wait no longer than that behind reports.
type sendWindow struct {
	bandwidth *flow.BandwidthEstimator
	// released holds a token when something was released since the last wait.
	released chan struct{}

	mu            sync.Mutex
	acquiredBytes int // guarded by mu
}

// acquire waits until the window has room for the given bytes.
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
	if r.acquiredBytes > 0 && r.acquiredBytes+size > r.bandwidth.Budget() {
		return 0, false
	}
	r.acquiredBytes += size
	return r.acquiredBytes, true
}

// release frees the bytes of a report. The time that it took, or waited in vain, updates the bandwidth estimate.
func (r *sendWindow) release(f inFlightReport, acked bool) {
	if acked {
		r.bandwidth.ObserveReply(f.queuedBytes, time.Since(f.sentAt))
	} else {
		r.bandwidth.ObserveNoReply(f.queuedBytes, time.Since(f.sentAt))
	}
	r.mu.Lock()
	r.acquiredBytes -= f.size
	r.mu.Unlock()
	select {
	case r.released <- struct{}{}:
	default:
	}
}
