package streams

import (
	"context"
	"sync"
	"time"
)

// room is what may be on its way to the hub at a time: as much as the link is believed to carry in a moment, or one message.
// Answers to pings and probes wait no longer than that behind reports.
type room struct {
	pace *pace
	// left has a token when something has left since somebody waited.
	left chan struct{}

	mu    sync.Mutex
	taken int // guarded by mu
}

// enter waits until there is room for so many bytes.
func (r *room) enter(ctx context.Context, size int) (inFlight, error) {
	for {
		if queue, ok := r.try(size); ok {
			return inFlight{size: size, queue: queue, at: time.Now()}, nil
		}
		select {
		case <-r.left:
		case <-ctx.Done():
			return inFlight{}, ctx.Err()
		}
	}
}

func (r *room) try(size int) (queue int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken > 0 && r.taken+size > r.pace.take() {
		return 0, false
	}
	r.taken += size
	return r.taken, true
}

// leave makes room. How long an acked message took tells what the link carries.
func (r *room) leave(f inFlight, acked bool) {
	if acked {
		r.pace.answered(f.queue, time.Since(f.at))
	}
	r.mu.Lock()
	r.taken -= f.size
	r.mu.Unlock()
	select {
	case r.left <- struct{}{}:
	default:
	}
}
