package identity

import (
	"sync"
	"time"
)

const (
	// quietSpan is how long the same refusal is not logged again; metrics count each.
	quietSpan = 10 * time.Minute
	// quietEntries bounds the memory: when it is full, what is new is logged once a span for all.
	quietEntries = 4096
)

// quiet remembers what was said.
type quiet struct {
	now func() time.Time

	mu    sync.Mutex
	since time.Time       // guarded by mu
	said  map[string]bool // guarded by mu
}

func newQuiet(now func() time.Time) *quiet { return &quiet{now: now, said: make(map[string]bool)} }

// first says that this was not said in the present span.
func (q *quiet) first(what string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now := q.now(); now.Sub(q.since) >= quietSpan || now.Before(q.since) {
		q.since = now
		clear(q.said)
	}
	if len(q.said) >= quietEntries {
		what = ""
	}
	if q.said[what] {
		return false
	}
	q.said[what] = true
	return true
}
