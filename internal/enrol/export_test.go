package enrol

import "time"

// Clock is the time as a gateway knows it.
type Clock struct{ *clock }

// NewClock makes one.
func NewClock(wall func() time.Time, up func() time.Duration, floor time.Time) Clock {
	return Clock{newClock(wall, up, floor)}
}

// What it is told, and what it says.
func (c Clock) Now() (t time.Time, doubtful bool)          { return c.now() }
func (c Clock) Known() time.Time                           { return c.known() }
func (c Clock) Told(cloud time.Time) (ahead time.Duration) { return c.told(cloud) }
func (c Clock) AtLeast(t time.Time)                        { c.atLeast(t) }
func (c Clock) Assume(t time.Time)                         { c.assume(t) }
