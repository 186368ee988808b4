package devcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// component is one process of the cluster.
type component struct {
	name string
	// stage orders the starts: components of one stage start together, once those of earlier stages are ready.
	stage   int
	command daemon.Command
	// edge is the gateway whose network namespace it runs in; "" for the host's. inMountNamespace adds the gateway's mount namespace.
	edge             string
	inMountNamespace bool
	// ready is one readiness check; nil means that a running process is ready.
	ready func(context.Context) error
	// onReady runs once after the first successful check.
	onReady func(context.Context) error
	// grace is the time between SIGTERM and SIGKILL.
	grace time.Duration
	// ports are the names of the ports it listens on, for the preflight.
	ports []string
}

// The stages. Each needs the ones before it.
const (
	stageBase    = iota // etcd, hub, wan, the gateways' namespaces
	stageAPI            // apiserver, containerd
	stageControl        // controller-manager, scheduler, cloudcore
	stageEdge           // edgecore
)

// tryTimeout bounds one try of a readiness check.
const tryTimeout = 3 * time.Second

// allComponents lists all processes of the cluster in start order.
func (c *Cluster) allComponents() []component {
	l, s := c.layout, c.state
	parts := []component{
		{
			name: "etcd", stage: stageBase, grace: 5 * time.Second, ports: []string{"etcd", "etcd-peer"},
			command: daemon.Command{Path: l.programFile("etcd"), Args: etcdFlags(l, s.Ports)},
			ready:   func(ctx context.Context) error { return c.requestComponent(ctx, etcdClient, "etcd", "/health", nil) },
		},
	}
	for _, h := range numberedNames("hub", s.Spec.Hubs) {
		parts = append(parts, component{
			name: h, stage: stageBase, grace: 10 * time.Second, ports: []string{h, h + "-cluster", h + "-leaf"},
			command: daemon.Command{Path: s.Programs.NatsServer, Args: []string{"-c", l.hubConfig(h)}},
			ready:   func(ctx context.Context) error { return hubReady(ctx, l, s, h) },
		})
	}
	parts = append(parts, component{
		name: "wan", stage: stageBase, grace: 2 * time.Second,
		command: daemon.Command{Path: s.Programs.Frond, Args: []string{"dev", "wan", "--config", l.wanConfig()}},
		ready:   func(ctx context.Context) error { _, err := c.fetchLinks(ctx); return err },
	})
	if s.Spec.Runtime == Containerd {
		for i, e := range numberedNames("edge", s.Spec.Edges) {
			parts = append(parts, c.holderComponent(e, i+1), c.containerdComponent(e, i+1))
		}
	}
	parts = append(parts, c.controlComponents()...)
	if !s.Spec.NoMetrics {
		parts = append(parts, c.metricsServerComponent())
	}
	if s.Programs.Edgecore != "" { // see controlComponents
		parts = append(parts, c.edgeComponents()...)
	}
	slices.SortStableFunc(parts, func(a, b component) int { return a.stage - b.stage })
	return parts
}

// edgeComponents lists the edgecores, and the kube-proxies beside them.
func (c *Cluster) edgeComponents() []component {
	l, s := c.layout, c.state
	var parts []component
	for i, e := range numberedNames("edge", s.Spec.Edges) {
		p := component{
			name: e, stage: stageEdge, grace: 15 * time.Second,
			command: daemon.Command{Path: s.Programs.Edgecore, Args: []string{"--config", l.edgeFiles(e).configFile()}},
			ready:   func(ctx context.Context) error { return c.edgeReady(ctx, e) },
		}
		if s.Spec.Runtime == Containerd {
			p.edge, p.inMountNamespace = e, true
			p.command.Env = []string{"PATH=" + filepath.Dir(s.Programs.Runc) + ":" + os.Getenv("PATH")}
		} else {
			p.ports = []string{e, e + "-api", e + "-kubelet"}
		}
		parts = append(parts, p)
		if s.Spec.KubeProxy {
			parts = append(parts, c.kubeProxyComponent(e, i+1))
		}
	}
	return parts
}

// controlComponents lists the Kubernetes control plane above etcd, and the cloudcores.
func (c *Cluster) controlComponents() []component {
	l, s := c.layout, c.state
	parts := []component{
		{
			name: "apiserver", stage: stageAPI, grace: 10 * time.Second, ports: []string{"apiserver"},
			command: daemon.Command{Path: l.programFile("kube-apiserver"), Args: apiserverFlags(l, s)},
			ready: func(ctx context.Context) error {
				return c.requestComponent(ctx, kubeClient, "apiserver", "/readyz", nil)
			},
			onReady: c.installAccounts,
		},
		{
			name: "controller-manager", stage: stageControl, grace: 5 * time.Second,
			command: daemon.Command{Path: l.programFile("kube-controller-manager"), Args: controllerManagerFlags(l)},
			ready: func(ctx context.Context) error {
				return c.requestComponent(ctx, kubeClient, "apiserver", "/api/v1/namespaces/default/serviceaccounts/default", nil)
			},
		},
		{
			name: "scheduler", stage: stageControl, grace: 5 * time.Second,
			command: daemon.Command{Path: l.programFile("kube-scheduler"), Args: schedulerFlags(l)},
		},
	}
	if s.Programs.Cloudcore == "" {
		return parts // without this program the caller gets only the components below
	}
	for _, name := range numberedNames("cloudcore", s.Spec.Cloudcores) {
		parts = append(parts, component{
			name: name, stage: stageControl, grace: 10 * time.Second, ports: []string{name, inspectPort(name)},
			command: daemon.Command{Path: s.Programs.Cloudcore, Args: []string{"--config", l.path(name, "cloudcore.yaml")}},
			ready:   func(ctx context.Context) error { return c.requestComponent(ctx, plainClient, name, "/readyz", nil) },
		})
	}
	return parts
}

// holderComponent is the process that keeps a gateway's mount namespace. It runs in the gateway's network namespace.
func (c *Cluster) holderComponent(edge string, i int) component {
	e := c.layout.edgeFiles(edge)
	return component{
		name: fmt.Sprintf("holder-%d", i), stage: stageBase, edge: edge, grace: time.Second,
		command: daemon.Command{Path: "/usr/bin/unshare", Args: []string{
			"--mount", "--propagation", "private", "/bin/sh", "-c", holderScript(e),
		}},
		ready: func(context.Context) error { _, err := os.Stat(e.holderReadyFile()); return err },
	}
}

func (c *Cluster) containerdComponent(edge string, i int) component {
	l, s := c.layout, c.state
	e := l.edgeFiles(edge)
	return component{
		name: fmt.Sprintf("containerd-%d", i), stage: stageAPI, edge: edge, inMountNamespace: true, grace: 10 * time.Second,
		command: daemon.Command{
			Path: s.Programs.Containerd, Args: []string{"--config", e.containerdConfig()},
			Env: []string{"PATH=" + filepath.Dir(s.Programs.Shim) + ":" + filepath.Dir(s.Programs.Runc) + ":" + os.Getenv("PATH")},
		},
		ready:   func(ctx context.Context) error { return c.ctrVersion(ctx, edge) },
		onReady: func(ctx context.Context) error { return c.importImages(ctx, edge) },
	}
}

// findComponent returns the component of this name.
func (c *Cluster) findComponent(name string) (component, error) {
	var names []string
	for _, p := range c.allComponents() {
		if p.name == name {
			return p, nil
		}
		names = append(names, p.name)
	}
	return component{}, fmt.Errorf("%q is no part of this cluster; its parts are %s", name, strings.Join(names, ", "))
}

// startComponent starts a component that does not run. It returns at once.
func (c *Cluster) startComponent(p component) error {
	cmd := p.command
	cmd.Log, cmd.Dir = c.layout.logFile(p.name), c.layout.dir
	if p.edge != "" {
		var holder daemon.Identity
		if p.inMountNamespace {
			holder = c.state.Processes[c.holderName(p.edge)]
			if !holder.Alive() {
				return fmt.Errorf("start %s: the holder of its mount namespace is gone: run frond dev up", p.name)
			}
		} else {
			_ = os.Remove(c.layout.edgeFiles(p.edge).holderReadyFile()) // this is a holder: the ready file of its predecessor does not count
		}
		cmd = c.enterNamespaces(p.edge, holder, cmd)
	}
	id, err := daemon.Start(cmd)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start %s: %w: the programs' cache has been cleaned: run frond dev up, which builds them again", p.name, err)
	} else if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	c.state.Processes[p.name] = id
	return c.saveState()
}

func (c *Cluster) holderName(edge string) string {
	return "holder-" + strings.TrimPrefix(edge, "edge-")
}

// awaitReady waits until a component is ready. It fails if the process ends or ctx does.
func (c *Cluster) awaitReady(ctx context.Context, p component) error {
	tick := time.NewTicker(100 * time.Millisecond) // another process has no event for "ready"
	defer tick.Stop()
	var last error
	for {
		if !c.state.Processes[p.name].Alive() {
			return fmt.Errorf("%s ended; the last lines of its log are:\n%s", p.name, tailLog(c.layout.logFile(p.name)))
		}
		if p.ready == nil {
			return nil
		}
		try, cancel := context.WithTimeout(ctx, tryTimeout)
		err := p.ready(try)
		cancel()
		if err == nil {
			break
		}
		if last == nil || ctx.Err() == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w (%w); the last lines of its log are:\n%s",
				p.name, last, context.Cause(ctx), tailLog(c.layout.logFile(p.name)))
		case <-tick.C:
		}
	}
	if p.onReady != nil {
		return p.onReady(ctx)
	}
	return nil
}

// tailLog returns the end of a log file, for an error message.
func tailLog(path string) string {
	const most, lines, width = 16 << 10, 12, 400
	f, err := os.Open(path)
	if err != nil {
		return "  (" + err.Error() + ")"
	}
	defer func() { _ = f.Close() }()
	if size, err := f.Seek(0, 2); err == nil && size > most {
		_, _ = f.Seek(-most, 2)
	} else {
		_, _ = f.Seek(0, 0)
	}
	buf := make([]byte, most)
	n, _ := f.Read(buf)
	all := strings.Split(strings.TrimRight(string(buf[:n]), "\n"), "\n")
	all = all[max(0, len(all)-lines):]
	for i, line := range all {
		if len(line) > width {
			all[i] = line[:width] + "…"
		}
	}
	return "  " + strings.Join(all, "\n  ") + "\n  (" + path + ")"
}

// fetchLinks returns the state of the gateways' links from the forwarder.
func (c *Cluster) fetchLinks(ctx context.Context) (map[string]wan.Link, error) {
	var links map[string]wan.Link
	err := c.requestSocket(ctx, c.layout.wanSocket(), http.MethodGet, "/links", &links)
	return links, err
}

var errNotReady = errors.New("not ready")
