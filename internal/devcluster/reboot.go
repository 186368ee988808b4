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

	"github.com/frond-edge/frond/internal/devcluster/cgroups"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/gateway"
	"github.com/frond-edge/frond/internal/devcluster/process"
	"github.com/frond-edge/frond/internal/devcluster/render"
	"github.com/frond-edge/frond/internal/devcluster/request"
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

// rebooter power-cycles a gateway.
type rebooter struct {
	f          *folder.Folder
	links      *gateway.Links
	api        *gateway.API
	catalog    *catalog
	supervisor *process.Supervisor
}

func (r *rebooter) run(ctx context.Context, edge string, o Reboot) (RebootResult, error) {
	result := RebootResult{Edge: edge, Offline: o.Offline || o.Sudden}
	if err := r.f.CheckGateway(edge); err != nil {
		return result, err
	}
	before, err := r.edgePods(ctx, edge)
	if err != nil {
		return result, fmt.Errorf("ask %s for its pods: %w", edge, err)
	}
	result.Pods = len(before)
	cidr, err := r.api.PodCIDR(ctx, edge)
	if err != nil {
		return result, err
	}
	if o.Offline && !o.Sudden {
		if err := r.links.Cut(ctx, edge, false); err != nil {
			return result, err
		}
	}
	err = r.f.Update(ctx, func() error {
		if err := r.powerOff(ctx, edge); err != nil {
			return fmt.Errorf("power off %s: %w", edge, err)
		}
		r.f.Logf("%s is off", edge)
		if err := render.RemoveStalePodNetwork(r.f.Layout.Gateway(edge), cidr); err != nil {
			return err
		}
		if o.Sudden {
			if err := r.links.CutLocked(ctx, edge, false); err != nil {
				return err
			}
		}
		if o.WhileOff != nil {
			if err := o.WhileOff(ctx); err != nil {
				return err
			}
		}
		return r.powerOn(ctx, edge)
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
	return result, r.awaitPods(ctx, &result, before, began)
}

// powerOff kills all processes of a gateway and removes what a machine loses in a power cut.
func (r *rebooter) powerOff(ctx context.Context, edge string) error {
	if r.f.State.Spec.Runtime != Containerd {
		return r.f.State.Processes[edge].Kill(ctx) // the hollow runtime is part of edgecore, with all its state
	}
	e := r.f.Layout.Gateway(edge)
	link := r.f.Network().State(ctx, edge)
	if err := cgroups.Kill(ctx, e.Cgroup); err != nil {
		return err
	}
	for _, name := range []string{edge, folder.ProxyName(edge), folder.ContainerdName(edge), folder.HolderName(edge)} {
		if err := r.f.State.Processes[name].Kill(ctx); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(e.Run); err != nil {
		return fmt.Errorf("remove what was below /run: %w", err)
	}
	if err := r.f.Network().Renew(ctx, edge, folder.Names("edge", r.f.State.Spec.Edges)); err != nil {
		return err
	}
	if link == wan.Cut || link == wan.Down {
		if err := r.f.Network().Cut(ctx, edge, link == wan.Down); err != nil {
			return err
		}
	}
	return cgroups.Make(e.Cgroup)
}

// powerOn starts the components of a gateway in order. It waits until the runtime is ready, but not for edgecore.
func (r *rebooter) powerOn(ctx context.Context, edge string) error {
	agent, err := r.catalog.find(edge)
	if err != nil {
		return err
	}
	if r.f.State.Spec.Runtime == Containerd {
		for _, name := range []string{folder.HolderName(edge), folder.ContainerdName(edge)} {
			p, err := r.catalog.find(name)
			if err != nil {
				return err
			}
			p.OnReady = nil // the images are on its disk
			if err := r.supervisor.StartStage(ctx, []process.Component{p}); err != nil {
				return err
			}
		}
	}
	if err := r.supervisor.AwaitPorts(ctx, agent); err != nil {
		return err
	}
	if err := r.supervisor.Start(agent); err != nil || !r.f.State.Spec.KubeProxy {
		return err
	}
	proxy, err := r.catalog.find(folder.ProxyName(edge))
	if err != nil {
		return err
	}
	return r.supervisor.Start(proxy)
}

// edgePods returns a gateway's pods with running containers, by namespace and name.
func (r *rebooter) edgePods(ctx context.Context, edge string) (map[string]edgePod, error) {
	var list struct {
		Items []edgePod `json:"items"`
	}
	if err := request.Socket(ctx, r.f.Layout.Gateway(edge).APISocket(), http.MethodGet, "/api/v1/pods", &list); err != nil {
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
func (r *rebooter) awaitPods(ctx context.Context, result *RebootResult, before map[string]edgePod, began time.Time) error {
	tick := time.NewTicker(rebootPoll)
	defer tick.Stop()
	for {
		now, err := r.edgePods(ctx, result.Edge)
		if err == nil && result.Agent == 0 {
			result.Agent = time.Since(began).Seconds()
			r.f.Logf("the local API of %s answers", result.Edge)
		}
		if err == nil {
			if err = checkPodsRestarted(before, now); err == nil {
				result.Running = time.Since(began).Seconds()
				r.f.Logf("all %d pods of %s run again", result.Pods, result.Edge)
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
