package devcluster

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// withLockedState locks the folder, reads the state again and runs do.
func (c *Cluster) withLockedState(ctx context.Context, do func() error) error {
	unlock, err := lockFolder(ctx, c.layout.path("lock"))
	if err != nil {
		return err
	}
	defer unlock()
	if c.state, err = loadState(c.layout.path("state.json")); err != nil {
		return fmt.Errorf("%s: %w", c.layout.dir, err)
	}
	return do()
}

// Kill ends a component as a crash would, with SIGKILL. Only Start and Up start it again.
func (c *Cluster) Kill(ctx context.Context, name string) error {
	return c.withLockedState(ctx, func() error {
		p, err := c.findComponent(name)
		if err != nil {
			return err
		}
		id := c.state.Processes[p.name]
		if !id.Alive() {
			return fmt.Errorf("%s does not run", name)
		}
		if err := id.Kill(ctx); err != nil {
			return err
		}
		c.logProgress("%s (pid %d) is killed", name, id.PID)
		return nil
	})
}

// startTimeout bounds Start; the slowest component, the apiserver, takes 5 s on two busy cores.
const startTimeout = 90 * time.Second

// Start starts a component that does not run, and waits until it is ready.
func (c *Cluster) Start(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("gave up after %s", startTimeout))
	defer cancel()
	return c.withLockedState(ctx, func() error {
		p, err := c.findComponent(name)
		if err != nil {
			return err
		}
		if c.state.Processes[p.name].Alive() {
			return fmt.Errorf("%s runs already", name)
		}
		if err := c.awaitPorts(ctx, p); err != nil {
			return err
		}
		if err := c.startStage(ctx, []component{p}); err != nil || !strings.HasPrefix(name, "hub-") {
			return err
		}
		return c.awaitHubs(ctx)
	})
}

// awaitHubs waits until all running servers of the hub are ready: a server that returns makes the others unready for a moment.
func (c *Cluster) awaitHubs(ctx context.Context) error {
	for _, p := range c.allComponents() {
		if !strings.HasPrefix(p.name, "hub-") || !c.state.Processes[p.name].Alive() {
			continue
		}
		if err := c.awaitReady(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// Cut drops everything between a gateway and the cloud, silently. With loud both ends detect it at once.
func (c *Cluster) Cut(ctx context.Context, edge string, loud bool) error {
	return c.withLockedState(ctx, func() error {
		if err := c.mustBeEdge(edge); err != nil {
			return err
		}
		return c.cutLink(ctx, edge, loud)
	})
}

func (c *Cluster) cutLink(ctx context.Context, edge string, loud bool) error {
	if c.state.Spec.Runtime == Containerd {
		return c.wanNetwork().Cut(ctx, edge, loud)
	}
	path := "/links/" + edge + "/cut"
	if loud {
		path += "?loud=1"
	}
	return c.requestSocket(ctx, c.layout.wanSocket(), http.MethodPost, path, nil)
}

// Heal undoes Cut.
func (c *Cluster) Heal(ctx context.Context, edge string) error {
	return c.withLockedState(ctx, func() error {
		if err := c.mustBeEdge(edge); err != nil {
			return err
		}
		if c.state.Spec.Runtime == Containerd {
			return c.wanNetwork().Heal(ctx, edge)
		}
		return c.requestSocket(ctx, c.layout.wanSocket(), http.MethodPost, "/links/"+edge+"/heal", nil)
	})
}

func (c *Cluster) mustBeEdge(edge string) error {
	edges := numberedNames("edge", c.state.Spec.Edges)
	if !slices.Contains(edges, edge) {
		return fmt.Errorf("%q is no gateway of this cluster; its gateways are %v", edge, edges)
	}
	return nil
}

// linkState returns the state of a gateway's link. forwarder is the answer of the wan process, nil if it does not answer.
func (c *Cluster) linkState(ctx context.Context, edge string, forwarder map[string]wan.Link) wan.State {
	if c.state.Spec.Runtime == Containerd {
		return c.wanNetwork().State(ctx, edge)
	}
	l, ok := forwarder[edge]
	switch {
	case !ok:
		return wan.Unknown
	case l.Cut && l.Loud:
		return wan.Down
	case l.Cut:
		return wan.Cut
	default:
		return wan.Up
	}
}

// portsTimeout bounds how long a killed process may still hold its ports: its leader is gone at once, the threads that hold its
// sockets a little later.
const portsTimeout = 5 * time.Second

// awaitPorts waits until the ports of a component are free; its error names the process that holds one.
func (c *Cluster) awaitPorts(ctx context.Context, p component) error {
	ctx, cancel := context.WithTimeout(ctx, portsTimeout)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := c.checkPortsFree(p)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}
