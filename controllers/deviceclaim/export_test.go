package deviceclaim

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/controllers"
)

// SetScanEvery sets how often a Reconciler that was not started looks at all Devices.
func (r *Reconciler) SetScanEvery(d time.Duration) { r.scanEvery = d }

// Scan is one scan, with the Nodes of the cache.
func (r *Reconciler) Scan(ctx context.Context) error {
	nodes, err := controllers.StoreOf(ctx, r.objects, &corev1.Node{})
	if err != nil {
		return err
	}
	return r.scan(ctx, nodes)
}
