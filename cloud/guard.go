package cloud

import (
	"fmt"
	"time"

	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/holds"
)

// desired is the engine's configuration.
func (c *Cloud) desired(epoch string, teller *holds.Teller) desired.Config {
	cfg := desired.Config{
		ClusterEpoch: epoch, OnHold: teller.Tell, Metrics: c.metrics,
		Guard: desired.Guard{Minimum: c.cfg.DeletionGuard.Minimum, After: time.Duration(c.cfg.DeletionGuard.After)},
	}
	if share := c.cfg.DeletionGuard.Share; share != nil {
		cfg.Guard.Share = *share
	}
	return cfg
}

// teller makes the writer of held deletions.
func (c *Cloud) teller(objects cache.Cache, members *Members) (*holds.Teller, error) {
	clients, err := kubernetes.NewForConfig(c.rest)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	return holds.New(clients, objects, members.Owns, c.log.Named("holds")), nil
}
