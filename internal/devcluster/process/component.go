// Package process starts the processes of a development cluster and waits until they are ready.
//
// Each is detached and recorded in the folder's state by process id, start time and boot. The caller holds the folder's lock.
package process

import (
	"context"
	"errors"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/daemon"
)

// Component is one process of the cluster.
type Component struct {
	Name string
	// Stage orders the starts: components of one stage start together, once those of earlier stages are ready.
	Stage   int
	Command daemon.Command
	// Edge is the gateway whose network namespace it runs in; "" for the host's. InMountNamespace adds the gateway's mount namespace.
	Edge             string
	InMountNamespace bool
	// Ready is one readiness check; nil means that a running process is ready.
	Ready func(context.Context) error
	// OnReady runs once after the first successful check.
	OnReady func(context.Context) error
	// Grace is the time between SIGTERM and SIGKILL.
	Grace time.Duration
	// Ports are the names of the ports it listens on, for the preflight.
	Ports []string
}

// The stages. Each needs the ones before it.
const (
	StageBase    = iota // etcd, hub, wan, the gateways' namespaces
	StageAPI            // apiserver, containerd
	StageControl        // controller-manager, scheduler, cloudcore
	StageEdge           // edgecore
)

// tryTimeout bounds one try of a readiness check.
const tryTimeout = 3 * time.Second

// ErrNotReady is the error of a component that runs and does not pass its readiness check.
var ErrNotReady = errors.New("not ready")

// Problem checks a running component once and returns why it is not ready, "" if it is.
func Problem(ctx context.Context, p Component) string {
	if p.Ready == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	if err := p.Ready(ctx); err != nil {
		return err.Error()
	}
	return ""
}
