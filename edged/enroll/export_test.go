package enroll

import "time"

// Clock exports trustedClock to tests.
type Clock struct{ *trustedClock }

// NewClock returns a Clock.
func NewClock(wall func() time.Time, up func() time.Duration, floor time.Time) Clock {
	return Clock{newTrustedClock(wall, up, floor)}
}

// The inputs and outputs of the clock.
func (c Clock) Now() (t time.Time, doubtful bool)                  { return c.now() }
func (c Clock) KnownTime() time.Time                               { return c.knownTime() }
func (c Clock) SetCloudTime(cloud time.Time) (ahead time.Duration) { return c.setCloudTime(cloud) }
func (c Clock) RaiseFloor(t time.Time)                             { c.raiseFloor(t) }
func (c Clock) AssumeTime(t time.Time)                             { c.assumeTime(t) }
