package devicewarnings

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/frond-edge/frond/controllers"
)

// SetScanInterval sets how often devices are looked at. Call it before Start.
func (r *Recorder) SetScanInterval(d time.Duration) { r.scanEvery = d }

// Scan is one scan, with the Nodes of the cache. Events are dropped.
func (r *Recorder) Scan(ctx context.Context) error {
	nodes, err := controllers.StoreOf(ctx, r.objects, &corev1.Node{})
	if err != nil {
		return err
	}
	return r.scan(ctx, nodes, &record.FakeRecorder{})
}

// Warned returns the reasons of the present warnings about a device, after Scan.
func (r *Recorder) Warned(key string) (reasons []string) {
	for _, w := range r.warned[key].warnings {
		reasons = append(reasons, w.Reason)
	}
	return reasons
}

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
	s.s.prune(map[subject]bool{{types.UID(device), reason}: true}, map[string]bool{node: true})
}
