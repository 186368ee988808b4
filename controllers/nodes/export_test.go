package nodes

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ShortenTimes shortens the times of a Monitor that is not started yet.
func (m *Monitor) ShortenTimes(renewEvery, silence time.Duration) {
	m.renewEvery, m.heartbeatTimeout = renewEvery, silence
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
