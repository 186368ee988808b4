package dispatch

import (
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

// paceInterval is the least time between two changes of a paced object. Kubernetes' controller of EndpointSlices itself waits
// for up to a second before it repeats a write; a Service that flaps at a probe's period of 1 s loses nothing.
const paceInterval = time.Second

// Pace reports whether a change of an object may be given to the object's nodes now, which is so if the last one was before
// paceInterval. If not, Processor.SpreadChange is called at the end of the interval, once for all changes until then. The cost of
// an object that changes all the time is therefore bounded by its nodes per interval, and its last state is always sent.
func (q *Queue) Pace(key wire.Key) (now bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.following {
		return true
	}
	if _, recent := q.paced[key]; recent {
		q.paced[key] = true
		return false
	}
	q.beginPace(key)
	return true
}

// beginPace begins an interval without further changes. The caller holds mu.
func (q *Queue) beginPace(key wire.Key) {
	q.paced[key] = false
	q.items.AddAfter(controllers.Urgent, Item{Key: key}, paceInterval)
}

// endPace ends an interval, and begins the next one if there was a further change, which it reports.
func (q *Queue) endPace(key wire.Key) (changed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.paced[key] {
		delete(q.paced, key)
		return false
	}
	q.beginPace(key)
	return true
}
