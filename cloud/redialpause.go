package cloud

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/names"
)

// redialCountInterval is how long a count of the gateways is used: counting 100,000 Nodes in the cache takes milliseconds, and in a storm all
// of them attach.
const redialCountInterval = 30 * time.Second

// redialPause is the longest pause between two dials that gateways are told: with it the dials of a fleet that lost its hub come at the rate
// at which the hub admits links.
type redialPause struct {
	linksPerSecond int
	// countGateways counts the gateways in Kubernetes; it does no I/O.
	countGateways func(ctx context.Context) (int, error)
	log           *zap.Logger

	mu       sync.Mutex
	counted  time.Time     // guarded by mu; when longest was calculated
	duration time.Duration // guarded by mu
}

// longest returns the pause, at least a second. The gateway bounds it.
func (p *redialPause) longest(ctx context.Context, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.counted.IsZero() && now.Sub(p.counted) < redialCountInterval {
		return p.duration
	}
	gateways, err := p.countGateways(ctx)
	if err != nil {
		p.log.Warn("gateways not counted: they keep the pause between dials that they have", zap.Error(err))
		return 0
	}
	p.counted, p.duration = now, max(time.Second, time.Duration(gateways)*time.Second/time.Duration(p.linksPerSecond))
	return p.duration
}

// countGateways counts the gateways in the cache.
func (f *foundation) countGateways(ctx context.Context) (int, error) {
	var list corev1.NodeList
	err := f.objects.List(ctx, &list, client.UnsafeDisableDeepCopy, client.HasLabels{names.LabelEdge})
	return len(list.Items), err
}
