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
