package devcluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/bootstrap"
	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/gateway"
	"github.com/frond-edge/frond/internal/devcluster/process"
	"github.com/frond-edge/frond/internal/devcluster/render"
	"github.com/frond-edge/frond/internal/devcluster/request"
	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// catalog lists the components of a cluster, with their commands and readiness checks.
type catalog struct {
	f       *folder.Folder
	install *bootstrap.Installer
	links   *gateway.Links
	api     *gateway.API
}

// all lists all processes of the cluster in start order.
func (c *catalog) all() []process.Component {
	l, s := c.f.Layout, c.f.State
	parts := []process.Component{
		{
			Name: "etcd", Stage: process.StageBase, Grace: 5 * time.Second, Ports: []string{"etcd", "etcd-peer"},
			Command: daemon.Command{Path: l.ProgramFile("etcd"), Args: render.EtcdFlags(l, s.Ports)},
			Ready: func(ctx context.Context) error {
				return request.Component(ctx, c.f, request.Etcd, "etcd", "/health", nil)
			},
		},
	}
	for _, h := range folder.Names("hub", s.Spec.Hubs) {
		parts = append(parts, process.Component{
			Name: h, Stage: process.StageBase, Grace: 10 * time.Second, Ports: []string{h, h + "-cluster", h + "-leaf"},
			Command: daemon.Command{Path: s.Programs.NatsServer, Args: []string{"-c", l.HubConfig(h)}, Env: []string{"GOGC=50"}}, // as in deploy/cloud/hub.yaml
			Ready:   func(ctx context.Context) error { return hubReady(ctx, l, s, h) },
		})
	}
	parts = append(parts, process.Component{
		Name: "wan", Stage: process.StageBase, Grace: 2 * time.Second,
		Command: daemon.Command{Path: s.Programs.Frond, Args: []string{"dev", "wan", "--config", l.WanConfig()}},
		Ready:   func(ctx context.Context) error { _, err := c.links.States(ctx); return err },
	})
	if s.Spec.Runtime == Containerd {
		for i, e := range folder.Names("edge", s.Spec.Edges) {
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
	slices.SortStableFunc(parts, func(a, b process.Component) int { return a.Stage - b.Stage })
	return parts
}

// edgeGrace is the time an edgecore has to send its last reports.
const edgeGrace = 15 * time.Second

// edgeComponents lists the edgecores, and the kube-proxies beside them.
func (c *catalog) edgeComponents() []process.Component {
	l, s := c.f.Layout, c.f.State
	var parts []process.Component
	for i, e := range folder.Names("edge", s.Spec.Edges) {
		p := process.Component{
			Name: e, Stage: process.StageEdge, Grace: edgeGrace,
			Command: daemon.Command{Path: s.Programs.Edgecore, Args: []string{"--config", l.Gateway(e).ConfigFile()}},
			Ready:   func(ctx context.Context) error { return c.edgeReady(ctx, e) },
		}
		if s.Spec.Runtime == Containerd {
			p.Edge, p.InMountNamespace = e, true
			p.Command.Env = []string{"PATH=" + filepath.Dir(s.Programs.Runc) + ":" + os.Getenv("PATH")}
		} else {
			p.Ports = []string{e, e + "-api", e + "-kubelet"}
			if s.Spec.Devices {
				p.Ports = append(p.Ports, e+"-mqtt")
			}
		}
		parts = append(parts, p)
		if s.Spec.KubeProxy {
			parts = append(parts, c.kubeProxyComponent(e, i+1))
		}
	}
	return parts
}

// controlComponents lists the Kubernetes control plane above etcd, and the cloudcores.
func (c *catalog) controlComponents() []process.Component {
	l, s := c.f.Layout, c.f.State
	parts := []process.Component{
		{
			Name: "apiserver", Stage: process.StageAPI, Grace: 10 * time.Second, Ports: []string{"apiserver"},
			Command: daemon.Command{Path: l.ProgramFile("kube-apiserver"), Args: render.APIServerFlags(l, s)},
			Ready: func(ctx context.Context) error {
				return request.Component(ctx, c.f, request.Kube, "apiserver", "/readyz", nil)
			},
			OnReady: c.install.CreateAccounts,
		},
		{
			Name: "controller-manager", Stage: process.StageControl, Grace: 5 * time.Second,
			Command: daemon.Command{Path: l.ProgramFile("kube-controller-manager"), Args: render.ControllerManagerFlags(l)},
			Ready: func(ctx context.Context) error {
				return request.Component(ctx, c.f, request.Kube, "apiserver", "/api/v1/namespaces/default/serviceaccounts/default", nil)
			},
		},
		{
			Name: "scheduler", Stage: process.StageControl, Grace: 5 * time.Second,
			Command: daemon.Command{Path: l.ProgramFile("kube-scheduler"), Args: render.SchedulerFlags(l)},
		},
	}
	if s.Programs.Cloudcore == "" {
		return parts // without this program the caller gets only the components below
	}
	for _, name := range folder.Names("cloudcore", s.Spec.Cloudcores) {
		parts = append(parts, process.Component{
			Name: name, Stage: process.StageControl, Grace: 10 * time.Second, Ports: []string{name, folder.InspectPort(name)},
			Command: daemon.Command{Path: s.Programs.Cloudcore, Args: []string{"--config", l.Path(name, "cloudcore.yaml")}},
			Ready: func(ctx context.Context) error {
				return request.Component(ctx, c.f, request.Plain, name, "/readyz", nil)
			},
		})
	}
	return parts
}

// holderComponent is the process that keeps a gateway's mount namespace. It runs in the gateway's network namespace.
func (c *catalog) holderComponent(edge string, i int) process.Component {
	e := c.f.Layout.Gateway(edge)
	return process.Component{
		Name: fmt.Sprintf("holder-%d", i), Stage: process.StageBase, Edge: edge, Grace: time.Second,
		Command: daemon.Command{Path: "/usr/bin/unshare", Args: []string{
			"--mount", "--propagation", "private", "/bin/sh", "-c", render.HolderScript(e),
		}},
		Ready: func(context.Context) error { _, err := os.Stat(e.HolderReadyFile()); return err },
	}
}

func (c *catalog) containerdComponent(edge string, i int) process.Component {
	l, s := c.f.Layout, c.f.State
	e := l.Gateway(edge)
	return process.Component{
		Name: fmt.Sprintf("containerd-%d", i), Stage: process.StageAPI, Edge: edge, InMountNamespace: true, Grace: 10 * time.Second,
		Command: daemon.Command{
			Path: s.Programs.Containerd, Args: []string{"--config", e.ContainerdConfig()},
			Env: []string{"PATH=" + filepath.Dir(s.Programs.Shim) + ":" + filepath.Dir(s.Programs.Runc) + ":" + os.Getenv("PATH")},
		},
		Ready:   func(ctx context.Context) error { return c.ctrVersion(ctx, edge) },
		OnReady: func(ctx context.Context) error { return c.importImages(ctx, edge) },
	}
}

// kubeProxyComponent is the kube-proxy of a gateway: upstream's, with the gateway's own API as its only API.
func (c *catalog) kubeProxyComponent(edge string, i int) process.Component {
	return process.Component{
		Name: fmt.Sprintf("proxy-%d", i), Stage: process.StageEdge, Edge: edge, InMountNamespace: true, Grace: 2 * time.Second,
		Command: daemon.Command{Path: c.f.Layout.ProgramFile("kube-proxy"), Args: []string{"--config=" + c.f.Layout.Gateway(edge).ProxyConfig()}},
		Ready: func(ctx context.Context) error {
			conn, err := wan.Dial(ctx, c.f.Network().Namespace(edge), render.ProxyHealth)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	}
}

// metricsServerComponent is upstream's metrics-server, with a token of its service account as in a pod.
func (c *catalog) metricsServerComponent() process.Component {
	return process.Component{
		Name: folder.MetricsServer, Stage: process.StageControl, Grace: 5 * time.Second, Ports: []string{folder.MetricsServer},
		Command: daemon.Command{Path: c.f.Layout.ProgramFile(folder.MetricsServer), Args: render.MetricsServerFlags(c.f.Layout, c.f.State.Ports)},
		Ready: func(ctx context.Context) error {
			return request.Component(ctx, c.f, request.Kube, folder.MetricsServer, "/livez", nil)
		},
	}
}

// find returns the component of this name.
func (c *catalog) find(name string) (process.Component, error) {
	var names []string
	for _, p := range c.all() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return process.Component{}, fmt.Errorf("%q is no part of this cluster; its parts are %s", name, strings.Join(names, ", "))
}

// importImages imports the images of the demo into a gateway's containerd. It is quick when they are present.
func (c *catalog) importImages(ctx context.Context, edge string) error {
	for _, image := range c.f.State.Programs.Images {
		cmd := exec.CommandContext(ctx, c.f.State.Programs.Ctr, "-a", c.f.Layout.Gateway(edge).ContainerdSocket(), "-n", "k8s.io",
			"images", "import", image)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("import %s: %w: %s", filepath.Base(image), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
