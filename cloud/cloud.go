package cloud

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/cloud/epoch"
	"github.com/frond-edge/frond/internal/certs"
	"github.com/frond-edge/frond/internal/lifecycle"
)

// startTimeout bounds the requests that must succeed before anything can start; after it the process ends and is restarted.
const startTimeout = time.Minute

// ErrRestored ends a replica when the Kubernetes API went back in time; the process should be restarted.
var ErrRestored = epoch.ErrRestored

// Cloud is one cloudcore replica.
type Cloud struct {
	cfg     config.CloudCore
	rest    *rest.Config
	metrics *prometheus.Registry
	log     *zap.Logger
}

// New creates a replica that uses the apiserver of kube. metrics is served on /metrics.
func New(cfg config.CloudCore, kube *rest.Config, metrics *prometheus.Registry, log *zap.Logger) (*Cloud, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Cloud{cfg: cfg, rest: kube, metrics: metrics, log: log}, nil
}

// Start runs the replica until ctx ends, then leaves the members, returns its unfinished work and returns nil. After
// ErrRestored the process should be restarted.
func (c *Cloud) Start(ctx context.Context) error {
	if err := c.metrics.Register(certs.NewExpiry(certs.FileExpiries(certificateFiles(c.cfg)))); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	hub, err := connectHub(c.cfg, c.metrics, c.log)
	if err != nil {
		return err
	}
	defer hub.close()
	sctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	stores, err := ensureHub(sctx, hub.nc, c.cfg.Replicas, layoutOf(c.cfg), c.log)
	if err != nil {
		return fmt.Errorf("prepare the hub: %w", err)
	}
	parts, err := c.assembleParts(sctx, hub, stores)
	if err != nil {
		return err
	}
	return lifecycle.Run(ctx, c.log, parts...)
}
