package devicestatus

import (
	"context"
	"time"

	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/controllers"
)

// NewFastAbsence is NewAbsence with short intervals.
func NewFastAbsence(applier *Applier, objects, statuses cache.Cache, owner controllers.Ownership, log *zap.Logger) *Absence {
	a := NewAbsence(applier, objects, statuses, owner, log)
	a.scanEvery, a.settle = 50*time.Millisecond, 2*time.Second
	return a
}

// Scan is one scan, with the Nodes of the cache.
func (a *Absence) Scan(ctx context.Context) error {
	nodes, err := controllers.StoreOf(ctx, a.objects, &corev1.Node{})
	if err != nil {
		return err
	}
	return a.scan(ctx, nodes)
}
