package rules

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/controllers/rules/resolve"
)

// run is what a replica does for a rule that it owns.
type run struct {
	uid      types.UID
	progress *progress
	// feed is what is passed on, zero if nothing is.
	feed resolve.Feed
	// stop ends the goroutine and waits for it.
	stop func()
}

// runs are those of a replica. Its methods may be called concurrently, but not for the same rule.
type runs struct {
	running sync.WaitGroup

	mu  sync.Mutex
	all map[types.NamespacedName]*run // guarded by mu
}

func newRuns() *runs { return &runs{all: map[types.NamespacedName]*run{}} }

// get returns the run of a rule, or nil.
func (r *runs) get(key types.NamespacedName) *run {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[key]
}

func (r *runs) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.all)
}

// add adds a run that passes nothing on.
func (r *runs) add(key types.NamespacedName, uid types.UID, progress *progress) *run {
	one := &run{uid: uid, progress: progress, stop: func() {}}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all[key] = one
	return one
}

// replace ends what a run does, and unless the feed is zero begins to call do in a goroutine.
func (r *runs) replace(ctx context.Context, one *run, feed resolve.Feed, do func(ctx context.Context)) {
	one.stop()
	one.feed, one.stop = feed, func() {}
	if feed == (resolve.Feed{}) {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	one.stop = func() {
		cancel()
		<-done
	}
	r.running.Go(func() {
		defer close(done)
		defer cancel()
		do(ctx)
	})
}

// remove ends the run of a rule.
func (r *runs) remove(key types.NamespacedName) {
	one := r.get(key)
	if one == nil {
		return
	}
	one.stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, key)
}

// wait waits for all runs, whose contexts have ended.
func (r *runs) wait() { r.running.Wait() }
