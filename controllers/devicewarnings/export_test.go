package devicewarnings

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// SetScanInterval sets how often devices are looked at. Call it before Start.
func (r *Recorder) SetScanInterval(d time.Duration) { r.scanEvery = d }

// Schedule is schedule.
type Schedule struct{ s *schedule }

// NewSchedule returns an empty one.
func NewSchedule() Schedule { return Schedule{newSchedule()} }

// Due returns quiet, due or deferred.
func (s Schedule) Due(node, device string, w Warning, now time.Time) string {
	return [...]string{"quiet", "due", "deferred"}[s.s.due(node, types.UID(device), w, now)]
}

// Keep forgets all but one warning.
func (s Schedule) Keep(device, reason, node string) {
	s.s.prune(map[subject]bool{{types.UID(device), reason}: true}, nil, map[string]bool{node: true})
}

// KeepAway forgets all, while the gateway of a device is away.
func (s Schedule) KeepAway(device, node string) {
	s.s.prune(nil, map[types.UID]bool{types.UID(device): true}, map[string]bool{node: true})
}
