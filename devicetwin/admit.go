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

// Reception is when the gateway received a message.
type Reception struct {
	// Time is the same each time that the message comes.
	Time time.Time
	// Again: it came before, and others may have come since.
	Again bool
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
// A value has the time that the device gives: its own, else that of the message, else that of the reception. A time in the gateway's future is
// replaced by that of the reception. A message without a time is the newest, in the order of reception; so is one that comes while the record is in
// the future, because then the gateway's clock was set back. Neither holds for a message that comes again: it is as new as it was.
func (s Spec) Admit(r Record, u Update, received Reception) (Admission, error) {
	c := sampleClock{received: received, message: u.Time}
	a := Admission{Fragment: Record{
		UID: s.UID, Reported: map[string]Sample{}, Observed: map[string]Sample{}, Required: map[string]bool{},
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
func (s Spec) AdmitState(r Record, word string, online bool, sent int64, received Reception) Admission {
	c := sampleClock{received: received, message: sent}
	state := c.stamp(Sample{Value: word}, 0, r.State)
	a := Admission{Fragment: Record{UID: s.UID, State: state}, Future: c.future}
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
	received Reception
	message  int64
	future   int
}

func (c *sampleClock) stamp(sample Sample, sent int64, old Sample) Sample {
	now := c.received.Time.UnixMilli()
	latest := now + clockTolerance.Milliseconds()
	at := sent
	if at <= 0 {
		at = c.message
	}
	if at > latest {
		c.future++
		at = 0
	}
	newest := at <= 0 || old.Order.Time > latest && at >= now-clockTolerance.Milliseconds()
	if at <= 0 {
		at = now
	}
	sample.Time, sample.Order = at, Order{Time: at, Sequence: uint64(max(0, c.received.Time.UnixNano()))}
	if newest && !c.received.Again && sample.compare(old) <= 0 {
		sample.Order = Order{Time: old.Order.Time, Sequence: old.Order.Sequence + 1}
	}
	return sample
}
