package nodes

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ShortenTimes shortens the times of a Monitor that is not started yet. heartbeat is also the shortest period of renewals.
func (m *Monitor) ShortenTimes(heartbeat, silence time.Duration) {
	m.leases.heartbeat, m.heartbeatTimeout = heartbeat, silence
}

// LeaseSchedule exports leaseSchedule.
type LeaseSchedule struct{ inside leaseSchedule }

// NewLeaseSchedule returns the schedule of a budget.
func NewLeaseSchedule(budget LeaseBudget) LeaseSchedule {
	return LeaseSchedule{leaseSchedule{budget, heartbeatPeriod}}
}

// Period is leaseSchedule.period.
func (s LeaseSchedule) Period(nodes int) time.Duration { return s.inside.period(nodes) }

// Seconds is leaseSchedule.seconds.
func (s LeaseSchedule) Seconds(period time.Duration) int32 { return s.inside.seconds(period) }

// IsDue is leaseSchedule.isDue.
func (s LeaseSchedule) IsDue(due, now time.Time) bool { return s.inside.isDue(due, now) }

// NextDue is leaseSchedule.nextDue.
func (s LeaseSchedule) NextDue(due, now time.Time, period time.Duration, share float64) time.Time {
	return s.inside.nextDue(due, now, period, share)
}

// ShortenProgressTimes shortens the times of the condition UpToDate of a Monitor that is not started yet.
func (m *Monitor) ShortenProgressTimes(behindAfter, caughtUp, tellEvery time.Duration) {
	m.evaluator.timing = conditionTiming{behindAfter, caughtUp, tellEvery}
}

// WantProgress returns the wanted state of UpToDate for a node that connected and was last written at these times.
func WantProgress(connected, lost bool, p Progress, joined, told, now time.Time, status corev1.ConditionStatus, reason string) (corev1.ConditionStatus, string) {
	n := nodeHealth{connected: connected, lost: lost, progress: p, connectedAt: joined, progressWritten: told}
	want := n.wantProgress(conditionState{status, reason}, conditionTiming{behindAfter, caughtUpWithin, changeEvery}, now)
	return want.status, want.reason
}
