package enrol

import "time"

// Clock is the time as a gateway knows it.
type Clock struct{ *trustedClock }

// NewClock makes one.
func NewClock(wall func() time.Time, up func() time.Duration, floor time.Time) Clock {
	return Clock{newTrustedClock(wall, up, floor)}
}

// What it is told, and what it says.
func (c Clock) Now() (t time.Time, doubtful bool)                  { return c.now() }
func (c Clock) KnownTime() time.Time                               { return c.knownTime() }
func (c Clock) SetCloudTime(cloud time.Time) (ahead time.Duration) { return c.setCloudTime(cloud) }
func (c Clock) RaiseFloor(t time.Time)                             { c.raiseFloor(t) }
func (c Clock) AssumeTime(t time.Time)                             { c.assumeTime(t) }
