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

// part is one process of the cluster.
type part struct {
	name string
	// stage orders starts; parts of one stage start together, once those of the stages before are ready.
	stage   int
	command daemon.Command
	// edge is the gateway whose network namespace it runs in; "" for the host's. held adds the mount namespace.
	edge string
	held bool
	// ready is one try; nil says that running is enough.
	ready func(context.Context) error
	// after runs once when it has become ready.
	after func(context.Context) error
	// grace is how long it may take to end when asked to.
	grace time.Duration
	// port names it listens on, for the preflight.
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

// parts lists all processes of the cluster in the order they start.
func (c *Cluster) parts() []part {
	l, s := c.layout, c.state
	parts := []part{
		{
			name: "etcd", stage: stageBase, grace: 5 * time.Second, ports: []string{"etcd", "etcd-peer"},
			command: daemon.Command{Path: l.bin("etcd"), Args: etcdFlags(l, s.Ports)},
			ready:   func(ctx context.Context) error { return c.get(ctx, etcdClient, "etcd", "/health", nil) },
		},
	}
	for _, h := range numbered("hub", s.Spec.Hubs) {
		parts = append(parts, part{
			name: h, stage: stageBase, grace: 10 * time.Second, ports: []string{h, h + "-cluster", h + "-leaf"},
			command: daemon.Command{Path: s.Programs.NatsServer, Args: []string{"-c", l.hubConfig(h)}},
			ready:   func(ctx context.Context) error { return hubReady(ctx, l, s, h) },
		})
	}
	parts = append(parts, part{
		name: "wan", stage: stageBase, grace: 2 * time.Second,
		command: daemon.Command{Path: s.Programs.Frond, Args: []string{"dev", "wan", "--config", l.wanConfig()}},
		ready:   func(ctx context.Context) error { _, err := c.links(ctx); return err },
	})
	if s.Spec.Runtime == Containerd {
		for i, e := range numbered("edge", s.Spec.Edges) {
			parts = append(parts, c.holder(e, i+1), c.containerd(e, i+1))
		}
	}
	parts = append(parts, c.controlParts()...)
	if !s.Spec.NoMetrics {
		parts = append(parts, c.metricsServer())
	}
	if s.Programs.Edgecore != "" { // see controlParts
		parts = append(parts, c.edgeParts()...)
	}
	slices.SortStableFunc(parts, func(a, b part) int { return a.stage - b.stage })
	return parts
}

// edgeParts are the edgecores.
func (c *Cluster) edgeParts() []part {
	l, s := c.layout, c.state
	var parts []part
	for i, e := range numbered("edge", s.Spec.Edges) {
		p := part{
			name: e, stage: stageEdge, grace: 15 * time.Second,
			command: daemon.Command{Path: s.Programs.Edgecore, Args: []string{"--config", l.edge(e).config()}},
			ready:   func(ctx context.Context) error { return c.edgeReady(ctx, e) },
		}
		if s.Spec.Runtime == Containerd {
			p.edge, p.held = e, true
			p.command.Env = []string{"PATH=" + filepath.Dir(s.Programs.Runc) + ":" + os.Getenv("PATH")}
		} else {
			p.ports = []string{e, e + "-api", e + "-kubelet"}
		}
		parts = append(parts, p)
		if s.Spec.KubeProxy {
			parts = append(parts, c.proxy(e, i+1))
		}
	}
	return parts
}

// controlParts are the Kubernetes control plane above etcd, and the cloudcores.
func (c *Cluster) controlParts() []part {
	l, s := c.layout, c.state
	parts := []part{
		{
			name: "apiserver", stage: stageAPI, grace: 10 * time.Second, ports: []string{"apiserver"},
			command: daemon.Command{Path: l.bin("kube-apiserver"), Args: apiserverFlags(l, s)},
			ready:   func(ctx context.Context) error { return c.get(ctx, kubeClient, "apiserver", "/readyz", nil) },
			after:   c.installAccounts,
		},
		{
			name: "controller-manager", stage: stageControl, grace: 5 * time.Second,
			command: daemon.Command{Path: l.bin("kube-controller-manager"), Args: controllerManagerFlags(l)},
			ready: func(ctx context.Context) error {
				return c.get(ctx, kubeClient, "apiserver", "/api/v1/namespaces/default/serviceaccounts/default", nil)
			},
		},
		{
			name: "scheduler", stage: stageControl, grace: 5 * time.Second,
			command: daemon.Command{Path: l.bin("kube-scheduler"), Args: schedulerFlags(l)},
		},
	}
	if s.Programs.Cloudcore == "" {
		return parts // a caller who names no such program wants the layers below alone
	}
	for _, name := range numbered("cloudcore", s.Spec.Cloudcores) {
		parts = append(parts, part{
			name: name, stage: stageControl, grace: 10 * time.Second, ports: []string{name, inspectPort(name)},
			command: daemon.Command{Path: s.Programs.Cloudcore, Args: []string{"--config", l.in(name, "cloudcore.yaml")}},
			ready:   func(ctx context.Context) error { return c.get(ctx, plainClient, name, "/readyz", nil) },
		})
	}
	return parts
}

// holder keeps a gateway's mount namespace, and runs in its network namespace.
func (c *Cluster) holder(edge string, i int) part {
	e := c.layout.edge(edge)
	return part{
		name: fmt.Sprintf("holder-%d", i), stage: stageBase, edge: edge, grace: time.Second,
		command: daemon.Command{Path: "/usr/bin/unshare", Args: []string{
			"--mount", "--propagation", "private", "/bin/sh", "-c", holdScript(e),
		}},
		ready: func(context.Context) error { _, err := os.Stat(e.held()); return err },
	}
}

func (c *Cluster) containerd(edge string, i int) part {
	l, s := c.layout, c.state
	e := l.edge(edge)
	return part{
		name: fmt.Sprintf("containerd-%d", i), stage: stageAPI, edge: edge, held: true, grace: 10 * time.Second,
		command: daemon.Command{
			Path: s.Programs.Containerd, Args: []string{"--config", e.containerdConfig()},
			Env: []string{"PATH=" + filepath.Dir(s.Programs.Shim) + ":" + filepath.Dir(s.Programs.Runc) + ":" + os.Getenv("PATH")},
		},
		ready: func(ctx context.Context) error { return c.ctrVersion(ctx, edge) },
		after: func(ctx context.Context) error { return c.importImages(ctx, edge) },
	}
}

// find returns the part of this name.
func (c *Cluster) find(name string) (part, error) {
	var names []string
	for _, p := range c.parts() {
		if p.name == name {
			return p, nil
		}
		names = append(names, p.name)
	}
	return part{}, fmt.Errorf("%q is no part of this cluster; its parts are %s", name, strings.Join(names, ", "))
}

// start starts a part that does not run. It returns at once.
func (c *Cluster) start(p part) error {
	cmd := p.command
	cmd.Log, cmd.Dir = c.layout.log(p.name), c.layout.dir
	if p.edge != "" {
		var holder daemon.Identity
		if p.held {
			holder = c.state.Processes[c.holderOf(p.edge)]
			if !holder.Alive() {
				return fmt.Errorf("start %s: the holder of its mount namespace is gone: run frond dev up", p.name)
			}
		} else {
			_ = os.Remove(c.layout.edge(p.edge).held()) // it is a holder: what it said before does not count
		}
		cmd = c.enter(p.edge, holder, cmd)
	}
	id, err := daemon.Start(cmd)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("start %s: %w: the programs' cache has been cleaned: run frond dev up, which builds them again", p.name, err)
	} else if err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	c.state.Processes[p.name] = id
	return c.save()
}

func (c *Cluster) holderOf(edge string) string { return "holder-" + strings.TrimPrefix(edge, "edge-") }

// await waits until a part is ready, or has died, or ctx ends.
func (c *Cluster) await(ctx context.Context, p part) error {
	tick := time.NewTicker(100 * time.Millisecond) // an outside process has no event for "ready"
	defer tick.Stop()
	var last error
	for {
		if !c.state.Processes[p.name].Alive() {
			return fmt.Errorf("%s ended; the last lines of its log are:\n%s", p.name, tail(c.layout.log(p.name)))
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
				p.name, last, context.Cause(ctx), tail(c.layout.log(p.name)))
		case <-tick.C:
		}
	}
	if p.after != nil {
		return p.after(ctx)
	}
	return nil
}

// tail is the end of a log file, for an error message.
func tail(path string) string {
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

// links asks the forwarder about the gateways' links.
func (c *Cluster) links(ctx context.Context) (map[string]wan.Link, error) {
	var links map[string]wan.Link
	err := c.unix(ctx, c.layout.wanSocket(), http.MethodGet, "/links", &links)
	return links, err
}

var errNotReady = errors.New("not ready")
