package devicetwin

import (
	"maps"
	"slices"
	"time"
)

// clockTolerance is how far a device's clock may be ahead of the gateway's. A value of a later time is not believed: it would hide every later one.
const clockTolerance = 10 * time.Minute

// Update is a message of a device's app or mapper. All times are milliseconds, 0 if not given.
type Update struct {
	Time       int64
	Properties map[string]PropertyUpdate
}

// PropertyUpdate is what a message says of one property.
type PropertyUpdate struct {
	// Actual is the value that the device has, Expected the desired value that the app works with. Nil: not in the message.
	Actual, Expected         *string
	ActualTime, ExpectedTime int64
	// Type is a type of KubeEdge's twin; empty is string.
	Type string
	// Required: the property cannot be deleted by a later message.
	Required bool
	// Delete: the property has no values any more. Then nothing else counts.
	Delete bool
}

// Admission is what a message became.
type Admission struct {
	// Fragment is to be merged into the record.
	Fragment Record
	// Stale counts values that are older than those of the record, which Merge will ignore.
	Stale int
	// Future counts times that were replaced by the gateway's, because they are in the future.
	Future int
}

// Admit checks a message against the Device and orders its values after those of the record. The message is taken as a whole or refused as a
// whole, as in KubeEdge; then the error is a *Refusal.
//
// A value has the time that the device gives: its own, else that of the message, else received, the gateway's. A time in the gateway's future is
// replaced by received. If the record itself is in the future, the gateway's clock was set back: then what comes now is the newest.
//
// A message that is taken twice must have the same received both times, and no other message of the device between them.
func (s Spec) Admit(r Record, u Update, received time.Time) (Admission, error) {
	c := sampleClock{received: received.UnixMilli(), message: u.Time, sequence: r.Sequence + 1}
	a := Admission{Fragment: Record{
		UID: s.UID, Sequence: c.sequence, Reported: map[string]Sample{}, Observed: map[string]Sample{}, Required: map[string]bool{},
	}}
	for _, name := range slices.Sorted(maps.Keys(u.Properties)) { // the same refusal each time
		p := u.Properties[name]
		if err := s.check(r, name, p); err != nil {
			return Admission{}, err
		}
		if p.Delete {
			a.add(a.Fragment.Reported, name, r.Reported[name], c.stamp(Sample{Deleted: true}, 0, r.Reported[name]))
			a.add(a.Fragment.Observed, name, r.Observed[name], c.stamp(Sample{Deleted: true}, 0, r.Observed[name]))
			continue
		}
		if p.Actual != nil {
			a.add(a.Fragment.Reported, name, r.Reported[name], c.stamp(Sample{Value: *p.Actual, Type: p.Type}, p.ActualTime, r.Reported[name]))
		}
		if p.Expected != nil {
			a.add(a.Fragment.Observed, name, r.Observed[name], c.stamp(Sample{Value: *p.Expected, Type: p.Type}, p.ExpectedTime, r.Observed[name]))
		}
		if p.Required {
			a.Fragment.Required[name] = true
		}
	}
	a.Future = c.future
	return a, nil
}

// AdmitState orders a state after that of the record. online: it says that the device was there.
func (s Spec) AdmitState(r Record, word string, online bool, sent int64, received time.Time) Admission {
	c := sampleClock{received: received.UnixMilli(), message: sent, sequence: r.Sequence + 1}
	state := c.stamp(Sample{Value: word}, 0, r.State)
	a := Admission{Fragment: Record{UID: s.UID, Sequence: c.sequence, State: state}, Future: c.future}
	if state.compare(r.State) < 0 {
		a.Stale++
	}
	if online {
		a.Fragment.LastOnline = state.Time
	}
	return a
}

func (a *Admission) add(samples map[string]Sample, name string, old, sample Sample) {
	samples[name] = sample
	if sample.compare(old) < 0 {
		a.Stale++
	}
}

func (s Spec) check(r Record, name string, p PropertyUpdate) error {
	spec := s.property(name)
	switch {
	case spec == nil:
		return &Refusal{Property: name, Reason: ReasonUnknownProperty, Message: "the Device " + s.ID.String() + " has no such property"}
	case p.Delete && r.Required[name]:
		return &Refusal{Property: name, Reason: ReasonRequired, Message: "it is not optional and cannot be deleted"}
	case p.Delete:
		return nil
	}
	for _, value := range []*string{p.Actual, p.Expected} {
		if value == nil || *value == "" {
			continue // KubeEdge's empty value: there is none
		}
		for _, word := range []string{p.Type, spec.Type} {
			if !fits(word, *value) {
				return &Refusal{Property: name, Reason: ReasonWrongType, Message: "the value " + clip(*value) + " is not of the type " + word}
			}
		}
	}
	return nil
}

// sampleClock gives the samples of one message their times.
type sampleClock struct {
	received, message int64
	sequence          uint64
	future            int
}

func (c *sampleClock) stamp(sample Sample, sent int64, old Sample) Sample {
	at := sent
	if at <= 0 {
		at = c.message
	}
	latest := c.received + clockTolerance.Milliseconds()
	if at > latest {
		c.future++
		at = 0
	}
	if at <= 0 {
		at = c.received
	}
	sample.Time, sample.Order = at, Order{Time: at, Sequence: c.sequence}
	if old.Order.Time > latest && at >= c.received-clockTolerance.Milliseconds() {
		sample.Order.Time = old.Order.Time
	}
	return sample
}
