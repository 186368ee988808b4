package mapper

import (
	"crypto/sha256"
	"time"

	"github.com/frond-edge/frond/devicetwin/dmi/dmipb"
)

// presence says whether a mapper has a device.
type presence string

const (
	absent presence = ""
	// uncertain: a call was made and not answered, or edgecore has restarted since.
	uncertain presence = "uncertain"
	present   presence = "present"
)

// entry is a device of a mapper.
type entry struct {
	// want is nil if the mapper should not have the device.
	want *wanted
	// device and model are what the mapper got last; sum is of both. They are empty while it is absent.
	device *dmipb.Device
	model  *dmipb.DeviceModel
	sum    [sha256.Size]byte
	has    presence
	// resend: the mapper may not have what it got last.
	resend bool

	// changed is when the mapper got it.
	changed time.Time
	// failures in a row and their last error; retry is when to try again.
	failures int
	err      error
	retry    time.Time
	// unsaved: the record store does not have this.
	unsaved bool
	// modelMissing: there is the Device but not its model.
	modelMissing bool
	// generation is of the Device.
	generation int64
	delivery   Delivery
}

// action is a call to make.
type action int

const (
	nothing action = iota // calls are made in the order of these constants
	// update creates or replaces the device.
	update
	// ensure creates or replaces a device that may be there and should not be, as it was, so that it can be removed.
	ensure
	// remove is allowed only for a device that is certainly there: a mapper of KubeEdge's framework ends otherwise.
	remove
)

func (a action) String() string { return [...]string{"nothing", "update", "ensure", "remove"}[a] }

// next returns the call that brings the mapper nearer to what it should have.
func (e *entry) next() action {
	switch {
	case e.want == nil && e.modelMissing: // what it has stays
		return nothing
	case e.want == nil && e.has == present:
		return remove
	case e.want == nil && e.has == uncertain:
		return ensure
	case e.want == nil:
		return nothing
	case e.has == absent || e.resend || e.sum != e.want.sum:
		return update
	}
	return nothing
}

// due returns when next may be called.
func (e *entry) due(settle time.Duration) time.Time {
	if due := e.changed.Add(settle); due.After(e.retry) {
		return due
	}
	return e.retry
}

// outcome is what became of a call.
type outcome int

const (
	done outcome = iota
	// refused: the mapper answered with an error.
	refused
	// broken: no answer; the call may have been carried out.
	broken
)

func (o outcome) String() string { return [...]string{"done", "refused", "broken"}[o] }

// maxRemovals bounds how often a mapper may refuse to remove a device: it may have done so and answer with an error each time.
const maxRemovals = 5

// record notes a call and its outcome.
func (e *entry) record(a action, w *wanted, o outcome, err error, now time.Time) {
	e.unsaved, e.err = true, err
	if o == done {
		e.failures, e.retry, e.changed = 0, time.Time{}, now
		if a == remove {
			e.forget()
			return
		}
		e.has, e.resend = present, false
		if a == update {
			e.device, e.model, e.sum = w.device, w.model, w.sum
		}
		return
	}
	e.failures++
	e.retry = now.Add(pauseAfter(e.failures))
	if (a == remove || a == ensure) && o == refused && e.failures >= maxRemovals {
		e.forget()
		return
	}
	if o == broken {
		e.changed = now
	}
	if a != update || o == broken || e.has == absent {
		e.has = uncertain
	}
	e.resend = true
	if a == update && e.device == nil {
		e.device, e.model, e.sum = w.device, w.model, w.sum
	}
}

// forget makes the device absent.
func (e *entry) forget() {
	e.has, e.resend, e.device, e.model, e.sum, e.failures = absent, false, nil, nil, [sha256.Size]byte{}, 0
}

// announce prepares a call that creates the device: what is stored says that it may be there, before it can be.
func (e *entry) announce(w *wanted) {
	e.has, e.resend, e.unsaved = uncertain, true, true
	e.device, e.model, e.sum = w.device, w.model, w.sum
}

// pauseAfter returns the pause after a number of failures.
func pauseAfter(failures int) time.Duration {
	return min(maxBackoff, minBackoff<<min(failures-1, 10))
}

// wantedModel is the model of want.
func (e *entry) wantedModel() *dmipb.DeviceModel {
	if e.want == nil {
		return nil
	}
	return e.want.model
}
