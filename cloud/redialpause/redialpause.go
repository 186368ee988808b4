// Package redialpause decides how long gateways that cannot reach the hub wait between two dials, by the size of the fleet.
package redialpause

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/names"
)

// countInterval is how long a count of the gateways is used: counting 100,000 Nodes in the cache takes milliseconds, and in a storm all
// of them attach.
const countInterval = 30 * time.Second

// Pause is the longest pause between two dials that gateways are told: with it the dials of a fleet that lost its hub come at the rate
// at which the hub admits links.
type Pause struct {
	linksPerSecond int
	count          func(ctx context.Context) (int, error)
	log            *zap.Logger

	mu       sync.Mutex
	counted  time.Time     // guarded by mu; when longest was calculated
	duration time.Duration // guarded by mu
}

// New returns the pause for a hub that admits so many links a second. count counts the gateways; it does no I/O (CountIn).
func New(linksPerSecond int, count func(ctx context.Context) (int, error), log *zap.Logger) *Pause {
	return &Pause{linksPerSecond: linksPerSecond, count: count, log: log}
}

// Longest returns the pause, at least a second. The gateway bounds it.
func (p *Pause) Longest(ctx context.Context, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.counted.IsZero() && now.Sub(p.counted) < countInterval {
		return p.duration
	}
	gateways, err := p.count(ctx)
	if err != nil {
		p.log.Warn("gateways not counted: they keep the pause between dials that they have", zap.Error(err))
		return 0
	}
	p.counted, p.duration = now, max(time.Second, time.Duration(gateways)*time.Second/time.Duration(p.linksPerSecond))
	return p.duration
}

// CountIn returns a function that counts the gateways in a cache.
func CountIn(objects client.Reader) func(context.Context) (int, error) {
	return func(ctx context.Context) (int, error) {
		var list corev1.NodeList
		err := objects.List(ctx, &list, client.UnsafeDisableDeepCopy, client.HasLabels{names.LabelEdge})
		return len(list.Items), err
	}
}
