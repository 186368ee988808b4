package nodes

import "time"

const (
	// heartbeatPeriod is the longest time between two heartbeats of a connected gateway; more of them come after changes.
	heartbeatPeriod = 10 * time.Second
	// leaseHeartbeats is how many heartbeats a Lease lasts beyond its period. With the shortest period it lasts for 40 s, as a kubelet's.
	leaseHeartbeats = 3
)

// LeaseBudget limits how many Leases one replica writes.
type LeaseBudget struct {
	// PerSecond is the number of renewals a second that the period is chosen for.
	PerSecond int
	// LongestPeriod bounds the period from above: a replica with more nodes than PerSecond × LongestPeriod exceeds the budget.
	LongestPeriod time.Duration
}

// leaseSchedule decides when the Leases of a replica's nodes are renewed. The heartbeat that is nearest to the due moment renews
// a Lease, and the next one is due a period after that moment, not after the write: heartbeats that come a little early or late
// change neither the rate nor the spread of the renewals. A Lease whose heartbeats arrive is never older than the period and one
// heartbeat.
type leaseSchedule struct {
	LeaseBudget
	// heartbeat is heartbeatPeriod, or another time in tests.
	heartbeat time.Duration
}

// period returns the time between two renewals of a Lease when this replica has a number of nodes whose heartbeats arrive.
func (s leaseSchedule) period(nodes int) time.Duration {
	longest := max(s.LongestPeriod, s.heartbeat)
	if s.PerSecond <= 0 {
		return longest
	}
	return min(max(time.Duration(nodes)*time.Second/time.Duration(s.PerSecond), s.heartbeat), longest)
}

// isDue reports whether a heartbeat at now renews a Lease that is due at a moment. A Lease of unknown age has the zero moment.
func (s leaseSchedule) isDue(due, now time.Time) bool {
	return !now.Before(due.Add(-s.heartbeat / 2))
}

// nextDue returns when a Lease is due again that was due at a moment and is renewed now. The nodes of a new owner, and those that
// return after an outage, renew at about the same time: their next renewals are spread over the period by share, which is random in [0, 1).
func (s leaseSchedule) nextDue(due, now time.Time, period time.Duration, share float64) time.Time {
	if now.Sub(due) <= s.heartbeat {
		return due.Add(period)
	}
	return now.Add(s.heartbeat/2 + time.Duration(share*float64(period)))
}

// seconds returns how long a renewal is said to be valid. Kubernetes' node controller has a time of its own instead, its grace period.
func (s leaseSchedule) seconds(period time.Duration) int32 {
	return int32(max(1, (period + leaseHeartbeats*s.heartbeat).Seconds()))
}
