package throttle

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

// LogDedup records which refusals were logged.
type LogDedup struct {
	now func() time.Time

	mu     sync.Mutex
	since  time.Time       // guarded by mu
	logged map[string]bool // guarded by mu
}

// NewLogDedup creates an empty record on a clock.
func NewLogDedup(now func() time.Time) *LogDedup {
	return &LogDedup{now: now, logged: make(map[string]bool)}
}

// IsFirst reports whether this is the first occurrence in the present span.
func (q *LogDedup) IsFirst(what string) bool {
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
