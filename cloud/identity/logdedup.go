package identity

import (
	"sync"
	"time"
)

const (
	// logDedupSpan is how long the same refusal is not logged again; metrics count each.
	logDedupSpan = 10 * time.Minute
	// logDedupEntries bounds the memory: when it is full, further refusals are logged once per span in total.
	logDedupEntries = 4096
)

// logDedup records which refusals were logged.
type logDedup struct {
	now func() time.Time

	mu     sync.Mutex
	since  time.Time       // guarded by mu
	logged map[string]bool // guarded by mu
}

func newLogDedup(now func() time.Time) *logDedup {
	return &logDedup{now: now, logged: make(map[string]bool)}
}

// isFirst reports whether this is the first occurrence in the present span.
func (q *logDedup) isFirst(what string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if now := q.now(); now.Sub(q.since) >= logDedupSpan || now.Before(q.since) {
		q.since = now
		clear(q.logged)
	}
	if len(q.logged) >= logDedupEntries {
		what = ""
	}
	if q.logged[what] {
		return false
	}
	q.logged[what] = true
	return true
}
