package cloud

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/holds"
	"github.com/frond-edge/frond/streams/subject"
)

// desiredConfig returns the engine's configuration.
func (c *Cloud) desiredConfig(history *EpochTracker, teller *holds.Reporter, withheld *withheldEvents) desired.Config {
	cfg := desired.Config{
		ClusterEpoch: history.Epoch(), VerifiedSince: history.VerifiedSince, OnHold: teller.Report, Metrics: c.metrics, Probe: newProbe(c.rest),
		Protected: c.protectedNamespaces(), OnWithheld: withheld.reportNeeded,
		TombstoneAge: time.Duration(c.cfg.TombstoneAge),
		Guard:        desired.Guard{Minimum: c.cfg.DeletionGuard.Minimum, After: time.Duration(c.cfg.DeletionGuard.After)},
	}
	if share := c.cfg.DeletionGuard.Share; share != nil {
		cfg.Guard.Share = *share
	}
	if keep := c.cfg.Restore.KeepFor; keep != nil {
		cfg.Restore = desired.Restore{Since: history.Restored(), KeepFor: time.Duration(*keep)}
	}
	return cfg
}

// openEpochTracker reads the state of the Kubernetes history; one of the members continues to increment the Lease.
func (c *Cloud) openEpochTracker(ctx context.Context, nc *nats.Conn, members *Members) (*EpochTracker, error) {
	clients, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	kv, err := js.KeyValue(ctx, subject.RegistryBucket)
	if err != nil {
		return nil, fmt.Errorf("registry: %w", err)
	}
	counts := func() bool { return members.Owns(epochLease) } // not a node's name, but it distributes equally well
	return OpenEpochTracker(ctx, clients, kv, counts, c.log.Named("history"))
}

// newHoldWriter creates the reporter of held deletions.
func (c *Cloud) newHoldWriter(objects cache.Cache, members *Members) (*holds.Reporter, error) {
	clients, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	return holds.New(clients, objects, members.Owns, c.log.Named("holds")), nil
}
