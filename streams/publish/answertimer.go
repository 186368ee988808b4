package publish

import (
	"sync"
	"time"
)

const (
	// minAnswerTimeout is some hundred times the hub's usual answer (2 to 5 ms), and well below the second that a planned stop of a server
	// may take. A repetition that was not needed costs the hub the check of an id.
	minAnswerTimeout = 300 * time.Millisecond
	// firstAnswerTimeout is in use until there is an answer to measure.
	firstAnswerTimeout = time.Second
	// maxAnswerTimeout bounds the wait for one answer; what is repeated waits twice as long each time.
	maxAnswerTimeout = 4 * time.Second
)

// answerTimer decides how long a request waits for its answer before it is sent again: as TCP's retransmission timer (RFC 6298), by the mean
// and the deviation of the answers before, so that a slow hub does not get each request twice. Unlike TCP's it also measures requests that were
// repeated, from when they were sent first: there is no saying which of them was answered, and a hub that has become slower than the timer
// answers no other ones. The zero value is ready for use, by any number of goroutines.
type answerTimer struct {
	mu                  sync.Mutex // guards all below
	measured            bool
	smoothed, deviation time.Duration
}

// timeout returns how long the given attempt, counted from 0, waits.
func (t *answerTimer) timeout(attempt int) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	wait := firstAnswerTimeout
	if t.measured {
		wait = max(minAnswerTimeout, t.smoothed+4*t.deviation)
	}
	for range attempt {
		if wait *= 2; wait >= maxAnswerTimeout {
			break
		}
	}
	return min(wait, maxAnswerTimeout)
}

// observe takes how long the answer to a request took, from when it was sent first.
func (t *answerTimer) observe(took time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.measured {
		t.measured, t.smoothed, t.deviation = true, took, took/2
		return
	}
	t.deviation += ((t.smoothed - took).Abs() - t.deviation) / 4
	t.smoothed += (took - t.smoothed) / 8
}
