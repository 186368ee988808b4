package tunnel

import (
	"sync"
	"time"
)

// deadline wakes the waiters of a condition when its time has come. The condition's lock guards all fields.
type deadline struct {
	timer  *time.Timer
	passed bool
}

// set replaces the deadline; the zero time is none. The condition's lock is held.
func (d *deadline) set(at time.Time, cond *sync.Cond) {
	d.stop()
	d.passed = false
	if at.IsZero() {
		return
	}
	wait := time.Until(at)
	if wait <= 0 {
		d.passed = true
		cond.Broadcast()
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		cond.L.Lock()
		defer cond.L.Unlock()
		if d.timer == timer { // otherwise it was replaced after it had fired
			d.passed = true
			cond.Broadcast()
		}
	})
	d.timer = timer
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
