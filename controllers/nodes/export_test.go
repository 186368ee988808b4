package nodes

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Hurry shortens the times of a Monitor that is not started yet.
func (m *Monitor) Hurry(renewEvery, silence time.Duration) {
	m.renewEvery, m.silence = renewEvery, silence
}

// HurryProgress shortens the times of the condition UpToDate of a Monitor that is not started yet.
func (m *Monitor) HurryProgress(behindAfter, caughtUp, tellEvery time.Duration) {
	m.pace = pace{behindAfter, caughtUp, tellEvery}
}

// WantProgress decides on UpToDate: what it should say of a node that joined and was told at these times.
func WantProgress(connected, lost bool, p Progress, joined, told, now time.Time, status corev1.ConditionStatus, reason string) (corev1.ConditionStatus, string) {
	n := node{connected: connected, lost: lost, progress: p, joined: joined, told: told}
	want := n.wantProgress(state{status, reason}, pace{behindAfter, caughtUp, tellEvery}, now)
	return want.status, want.reason
}
