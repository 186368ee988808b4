package topology

import (
	"context"
)

// ObserveStream records one observation of the stream.
func (k *Reconciler) ObserveStream(epoch string, last uint64) {
	k.observeStream(k.layout.DesiredStreams()[0], epoch, last)
}

// ReconcileTopology runs one check of a hub whose topology is in place.
func (k *Reconciler) ReconcileTopology(ctx context.Context) error {
	ensured := true
	return k.reconcileTopology(ctx, &ensured)
}
