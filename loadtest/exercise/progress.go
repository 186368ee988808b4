package exercise

import (
	"context"
	"time"

	"github.com/frond-edge/frond/loadtest/measure"
)

// progressInterval is how often a phase says how far it is.
const progressInterval = 10 * time.Second

// Progress is how far a phase is.
type Progress struct {
	// Number is the phase's, from 1.
	Number  int
	Kind    string
	Elapsed time.Duration
	// Ended operations have a latency; Outstanding ones were due and have not ended.
	Ended       int64
	Outstanding int
	// Failed are requests that Kubernetes refused, in this phase.
	Failed int64
	// Messages are those that the gateways have stored in this phase.
	Messages int64
	// Joined and Linked are gateways.
	Joined int
	Linked int64
}

// Listener hears of a run while it goes on. Its functions must not block; nil: no call.
type Listener struct {
	// Progress is called some times a minute, by another goroutine than Run's.
	Progress func(Progress)
	// Done is called after each phase.
	Done func(Result)
}

// reportProgress reports until ctx ends.
func reportProgress(ctx context.Context, r *Runner, p Progress, began time.Time, into *measure.Histogram) {
	ticker := time.NewTicker(r.progressEvery)
	defer ticker.Stop()
	failed, messages := r.failed.Load(), r.messages.Load()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		p.Elapsed, p.Ended, p.Outstanding = time.Since(began), into.Summary().Count, r.tracker.Outstanding()
		p.Failed, p.Messages = r.failed.Load()-failed, r.messages.Load()-messages
		p.Joined, p.Linked = r.swarm.Joined(), r.swarm.Counters().Linked.Load()
		r.listener.Progress(p)
	}
}
