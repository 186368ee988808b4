package nodes

import "time"

// Hurry shortens the times of a Monitor that is not started yet.
func (m *Monitor) Hurry(renewEvery, silence time.Duration) {
	m.renewEvery, m.silence = renewEvery, silence
}
