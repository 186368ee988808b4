// Package redial decides when a gateway dials the hub again.
//
// It has no clock and does no I/O, so that a load test can give thousands of simulated gateways the same behaviour.
package redial

import "time"

const (
	// outageDivisor: a link that has been down for t is dialled again after t/outageDivisor. It then comes back at most a quarter later
	// than possible, and long outages cost the hub few dials.
	outageDivisor = 4
	// outageCredit is how much outage a link compensates, as a multiple of its own duration. A link that was soon lost hardly shortens the
	// pauses, so a hub that accepts and drops the node is not dialled every second. A link that worked does, so hub servers that are
	// restarted one after the other do not cost more each time.
	outageCredit = 4
)

// Backoff decides when to dial. While the hub cannot be reached the pauses grow slowly, up to Max: a dial costs the hub nothing then. A hub
// that is reached and does not answer in time is overloaded, and each dial that it cannot finish makes that worse; so the pause is as long
// as the outage so far, up to StalledMax.
type Backoff struct {
	// Min, Max and StalledMax bound the time between two dials; jitter takes up to 40 % off.
	Min, Max, StalledMax time.Duration
	// Jitter returns a number in [0,1).
	Jitter func() float64

	outageStart time.Time // start of the outage
	linkedSince time.Time // start of the link; zero while there is none
	nextDial    time.Time // when to dial next
}

// StartOutage starts an outage and schedules the first dial. The part of earlier outages that their links have not compensated counts as
// its beginning.
func (b *Backoff) StartOutage(now time.Time) {
	if b.linkedSince.IsZero() {
		b.outageStart = now
	} else {
		before := min(b.linkedSince.Sub(b.outageStart), outageDivisor*b.Max) // a longer outage does not lengthen any pause
		b.outageStart = now.Add(-max(0, before-outageCredit*now.Sub(b.linkedSince)))
	}
	b.linkedSince = time.Time{}
	b.ScheduleNext(now, false)
}

// ScheduleNext sets the time of the dial after one at now. stalled says that the dial before it reached a hub that did not answer in time.
func (b *Backoff) ScheduleNext(now time.Time, stalled bool) {
	outage := now.Sub(b.outageStart)
	pause := min(outage/outageDivisor, b.Max)
	if stalled {
		pause = min(outage, b.StalledMax)
	}
	b.nextDial = now.Add(time.Duration(float64(max(pause, b.Min)) * (0.6 + 0.4*b.Jitter())))
}

// NextDial returns when to dial next.
func (b *Backoff) NextDial() time.Time { return b.nextDial }

// Due reports whether it is time to dial.
func (b *Backoff) Due(now time.Time) bool {
	return b.linkedSince.IsZero() && !now.Before(b.nextDial)
}

// EndOutage ends an outage: there is a link.
func (b *Backoff) EndOutage(now time.Time) { b.linkedSince = now }
