package resync

import "time"

// SetTimes shortens the times of a Reporter that has not been started.
func (r *Reporter) SetTimes(interval, comparePause time.Duration) {
	r.interval, r.comparePause = interval, comparePause
}
