package enroll

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxPlausibleDrift is how far after the last known time a machine's clock is trusted: a gateway that was off for
	// longer needs an operator anyway, as its key has expired beyond the window.
	maxPlausibleDrift = 365 * 24 * time.Hour
	// floorSaveInterval is how often the known time is saved: it limits the error after a boot without a clock.
	floorSaveInterval = time.Hour
)

// trustedClock is the time as known to this gateway.
type trustedClock struct {
	wall func() time.Time
	// sinceBoot returns how long the machine has run, including suspend and independent of the clock's setting; bootOffset
	// is its first value.
	sinceBoot  func() time.Duration
	bootOffset time.Duration

	mu sync.Mutex // guards all fields below
	// floor is the newest time from a trusted source; it survives restarts.
	floor time.Time
	// anchor is the cloud's time as of anchored.
	anchor   time.Time
	anchored time.Duration
	// assumed is the least time by the hub's certificate, as of assumedAt; used while the machine's clock is not plausible.
	assumed   time.Time
	assumedAt time.Duration
}

func newTrustedClock(wall func() time.Time, up func() time.Duration, floor time.Time) *trustedClock {
	if wall == nil {
		wall = time.Now
	}
	if up == nil {
		up = readUptime
	}
	return &trustedClock{wall: wall, sinceBoot: up, bootOffset: up(), floor: floor}
}

// readUptime advances while the machine is suspended; the clock behind time.Since does not.
func readUptime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // a kernel before 2.6.39
	}
	return time.Duration(t.Nano())
}

// now returns the time, and whether the machine's clock was ignored for it without a time of the cloud.
func (c *trustedClock) now() (t time.Time, doubtful bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.anchor.IsZero() {
		return c.anchor.Add(c.sinceBoot() - c.anchored), false
	}
	wall := c.wall()
	if c.floor.IsZero() || isPlausible(wall, c.floor) {
		return wall, false
	}
	if !c.assumed.IsZero() {
		return c.assumed.Add(c.sinceBoot() - c.assumedAt), true
	}
	return c.floor.Add(c.sinceBoot() - c.bootOffset), true
}

// isPlausible checks a clock against a time that has certainly passed.
func isPlausible(wall, floor time.Time) bool {
	return !wall.Before(floor) && wall.Before(floor.Add(maxPlausibleDrift))
}

// setCloudTime sets the cloud's time, and returns how far the machine's clock is ahead of it.
func (c *trustedClock) setCloudTime(cloud time.Time) (ahead time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.anchor, c.anchored, c.floor = cloud, c.sinceBoot(), cloud
	return c.wall().Sub(cloud)
}

// raiseFloor raises the floor to a time that has certainly passed.
func (c *trustedClock) raiseFloor(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.After(c.floor) {
		c.floor = t
	}
}

// assumeTime sets the least time by the hub's certificate, for a machine whose clock is not plausible.
func (c *trustedClock) assumeTime(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.assumed, c.assumedAt = t, c.sinceBoot()
}

// knownTime returns the newest time from a trusted source.
func (c *trustedClock) knownTime() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.anchor.IsZero() {
		return c.anchor.Add(c.sinceBoot() - c.anchored)
	}
	return c.floor
}

// wallTime returns the machine's own time.
func (c *trustedClock) wallTime() time.Time { return c.wall() }
