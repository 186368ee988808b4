// Package clustertest runs the tests of a package on one development cluster.
package clustertest

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/toolchain"
)

// upTimeout bounds the start of a cluster on a busy machine.
const upTimeout = 5 * time.Minute

// Suite describes the cluster of a package's tests.
type Suite struct {
	// DirVariable is the environment variable that names the folder of a cluster which stays after the tests. Without it the cluster is in
	// a temporary folder, whose name begins with Prefix, and is removed.
	DirVariable, Prefix string
	Spec                devcluster.Spec
	// Request returns what is built for a cluster; nil means the control plane, the hub and Frond.
	Request func(devcluster.Spec) toolchain.Request
	// Prepare gets the started cluster before the tests. Finish runs after them, with their exit code; it may be nil.
	Prepare func(ctx context.Context, cluster *devcluster.Cluster) error
	Finish  func(ctx context.Context, code int)
}

// Run starts the cluster, runs the tests and removes the cluster. It returns the exit code for TestMain. It panics if it has no cluster:
// `make test` runs what failed once more, and would run this package without any test, and take that for a success.
func (s Suite) Run(m *testing.M) int {
	ctx := context.Background() //nolint:forbidigo // a TestMain has no other
	dir := os.Getenv(s.DirVariable)
	keep := dir != ""
	if !keep {
		var err error
		if dir, err = os.MkdirTemp("", s.Prefix); err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
	}
	cluster, err := s.start(ctx, dir)
	if cluster != nil && !keep {
		defer func() {
			if err := cluster.Down(ctx, false); err != nil {
				fmt.Fprintln(os.Stderr, "down:", err)
			}
		}()
	}
	if err == nil {
		err = s.Prepare(ctx, cluster)
	}
	if err != nil {
		panic(fmt.Errorf("start the cluster: %w", err))
	}
	code := m.Run()
	if s.Finish != nil {
		s.Finish(ctx, code)
	}
	return code
}

func (s Suite) start(ctx context.Context, dir string) (*devcluster.Cluster, error) {
	return devcluster.Up(ctx, devcluster.Options{
		Spec: s.Spec, Dir: dir, Progress: os.Stderr, Timeout: upTimeout,
		Programs: func(ctx context.Context, spec devcluster.Spec) (toolchain.Paths, error) {
			request := toolchain.Request{Kube: true, Nats: true, Frond: true}
			if s.Request != nil {
				request = s.Request(spec)
			}
			return toolchain.Ensure(ctx, request, os.Stderr)
		},
	})
}
