package devcluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// Reboot holds the options of Cluster.Reboot. The zero value is a power cycle with the link as it is.
type Reboot struct {
	// Offline cuts the link before the power cut, and leaves it cut.
	Offline bool
	// Sudden cuts the power before the link: the gateway dies in the middle of its traffic, and boots without a link.
	Sudden bool
	// WhileOff runs while all processes of the gateway are stopped; nil means nothing. It must not call the cluster.
	WhileOff func(context.Context) error
	// Timeout bounds the wait for the pods; 0 means 3 min.
	Timeout time.Duration
}

// RebootResult is the outcome of a reboot.
type RebootResult struct {
	Edge    string `json:"edge"`
	Offline bool   `json:"offline"`
	// Pods counts the pods whose containers ran before.
	Pods int `json:"pods"`
	// Agent is the time from the runtime being ready until edgecore's local API answered, Running until every container
	// of every pod ran again, in seconds.
	Agent   float64 `json:"agentSeconds"`
	Running float64 `json:"runningSeconds"`
}

// rebootTimeout is the default of Reboot.Timeout.
const rebootTimeout = 3 * time.Minute

// rebootPoll is the interval at which the gateway is polled for its pods, and so the precision of RebootResult.
const rebootPoll = 50 * time.Millisecond

// Reboot power-cycles a gateway. It kills all its processes at once, containers included, and removes
// its mounts, sockets, cgroups, network and everything below its run folder. Then it starts the runtime and edgecore.
// It returns when the containers of all pods that ran before run again, as new ones.
func (c *Cluster) Reboot(ctx context.Context, edge string, o Reboot) (RebootResult, error) {
	result := RebootResult{Edge: edge, Offline: o.Offline || o.Sudden}
	if err := c.mustBeEdge(edge); err != nil {
		return result, err
	}
	before, err := c.edgePods(ctx, edge)
	if err != nil {
		return result, fmt.Errorf("ask %s for its pods: %w", edge, err)
	}
	result.Pods = len(before)
	cidr, err := c.podCIDR(ctx, edge)
	if err != nil {
		return result, err
	}
	if o.Offline && !o.Sudden {
		if err := c.Cut(ctx, edge, false); err != nil {
			return result, err
		}
	}
	err = c.withLockedState(ctx, func() error {
		if err := c.powerOff(ctx, edge); err != nil {
			return fmt.Errorf("power off %s: %w", edge, err)
		}
		c.logProgress("%s is off", edge)
		if err := removeStalePodNetwork(c.layout.edgeFiles(edge), cidr); err != nil {
			return err
		}
		if o.Sudden {
			if err := c.cutLink(ctx, edge, false); err != nil {
				return err
			}
		}
		if o.WhileOff != nil {
			if err := o.WhileOff(ctx); err != nil {
				return err
			}
		}
		return c.powerOn(ctx, edge)
	})
	if err != nil {
		return result, err
	}
	began := time.Now()
	timeout := o.Timeout
	if timeout == 0 {
		timeout = rebootTimeout
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("gave up after %s", timeout))
	defer cancel()
	return result, c.awaitPods(ctx, &result, before, began)
}

// powerOff kills all processes of a gateway and removes what a machine loses in a power cut.
func (c *Cluster) powerOff(ctx context.Context, edge string) error {
	if c.state.Spec.Runtime != Containerd {
		return c.state.Processes[edge].Kill(ctx) // the hollow runtime is part of edgecore, with all its state
	}
	e := c.layout.edgeFiles(edge)
	link := c.wanNetwork().State(ctx, edge)
	if err := e.killCgroups(ctx); err != nil {
		return err
	}
	for _, name := range []string{edge, c.kubeProxyName(edge), c.containerdName(edge), c.holderName(edge)} {
		if err := c.state.Processes[name].Kill(ctx); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(e.run); err != nil {
		return fmt.Errorf("remove what was below /run: %w", err)
	}
	if err := c.wanNetwork().Renew(ctx, edge, numberedNames("edge", c.state.Spec.Edges)); err != nil {
		return err
	}
	if link == wan.Cut || link == wan.Down {
		if err := c.wanNetwork().Cut(ctx, edge, link == wan.Down); err != nil {
			return err
		}
	}
	return e.makeCgroups()
}

// powerOn starts the components of a gateway in order. It waits until the runtime is ready, but not for edgecore.
func (c *Cluster) powerOn(ctx context.Context, edge string) error {
	agent, err := c.findComponent(edge)
	if err != nil {
		return err
	}
	if c.state.Spec.Runtime == Containerd {
		for _, name := range []string{c.holderName(edge), c.containerdName(edge)} {
			p, err := c.findComponent(name)
			if err != nil {
				return err
			}
			p.onReady = nil // the images are on its disk
			if err := c.startStage(ctx, []component{p}); err != nil {
				return err
			}
		}
	}
	if err := c.awaitPorts(ctx, agent); err != nil {
		return err
	}
	if err := c.startComponent(agent); err != nil || !c.state.Spec.KubeProxy {
		return err
	}
	proxy, err := c.findComponent(c.kubeProxyName(edge))
	if err != nil {
		return err
	}
	return c.startComponent(proxy)
}

func (c *Cluster) containerdName(edge string) string {
	return "containerd-" + strings.TrimPrefix(edge, "edge-")
}

// edgePod has the fields of a gateway's pod that are read here.
type edgePod struct {
	Metadata struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
		UID       string `json:"uid"`
	} `json:"metadata"`
	Status struct {
		ContainerStatuses []struct {
			ContainerID string `json:"containerID"`
			Ready       bool   `json:"ready"`
			State       struct {
				Running *struct{} `json:"running"`
			} `json:"state"`
		} `json:"containerStatuses"`
	} `json:"status"`
}

// runningContainers lists the containers of a pod that are running and ready.
func (p edgePod) runningContainers() []string {
	var ids []string
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Running != nil && s.Ready {
			ids = append(ids, s.ContainerID)
		}
	}
	return ids
}

// edgePods returns a gateway's pods with running containers, by namespace and name.
func (c *Cluster) edgePods(ctx context.Context, edge string) (map[string]edgePod, error) {
	var list struct {
		Items []edgePod `json:"items"`
	}
	if err := c.requestSocket(ctx, c.layout.edgeFiles(edge).apiSocket(), http.MethodGet, "/api/v1/pods", &list); err != nil {
		return nil, err
	}
	pods := map[string]edgePod{}
	for _, p := range list.Items {
		if len(p.runningContainers()) > 0 {
			pods[p.Metadata.Namespace+"/"+p.Metadata.Name] = p
		}
	}
	return pods, nil
}

// awaitPods waits until each pod has as many running containers as before and none of the old ones, and records the times.
func (c *Cluster) awaitPods(ctx context.Context, result *RebootResult, before map[string]edgePod, began time.Time) error {
	tick := time.NewTicker(rebootPoll)
	defer tick.Stop()
	for {
		now, err := c.edgePods(ctx, result.Edge)
		if err == nil && result.Agent == 0 {
			result.Agent = time.Since(began).Seconds()
			c.logProgress("the local API of %s answers", result.Edge)
		}
		if err == nil {
			if err = checkPodsRestarted(before, now); err == nil {
				result.Running = time.Since(began).Seconds()
				c.logProgress("all %d pods of %s run again", result.Pods, result.Edge)
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

// checkPodsRestarted returns an error that names the pods that do not run again.
func checkPodsRestarted(before, now map[string]edgePod) error {
	var names []string
	for name, old := range before {
		was, is := old.runningContainers(), now[name].runningContainers()
		same := slices.ContainsFunc(is, func(id string) bool { return slices.Contains(was, id) })
		if len(is) < len(was) || same {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("%d of %d pods do not run again: %s", len(names), len(before), strings.Join(names, ", "))
}
