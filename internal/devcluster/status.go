package devcluster

import (
	"context"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"
)

// Status is a cluster at one moment; its JSON is the stable output of frond dev status.
type Status struct {
	Dir        string            `json:"dir"`
	Runtime    Runtime           `json:"runtime"`
	Components []ComponentStatus `json:"parts"`
	Edges      []EdgeStatus      `json:"edges"`
}

// ComponentStatus is one process.
type ComponentStatus struct {
	Name string `json:"name"`
	// Running reports that the process is alive, Ready that it also passes its readiness check.
	Running bool      `json:"running"`
	Ready   bool      `json:"ready"`
	PID     int       `json:"pid,omitempty"`
	Started time.Time `json:"started,omitzero"`
	// RSS is its resident memory in bytes.
	RSS int64 `json:"rss,omitempty"`
	// Problem is the reason why it is not ready.
	Problem string `json:"problem,omitempty"`
	Log     string `json:"log"`
}

// EdgeStatus is one gateway, by the state of its link and of its Node.
type EdgeStatus struct {
	Name string `json:"name"`
	// Link is up, cut (silent), down (loud) or unknown.
	Link string `json:"link"`
	// NodeReady is the Node's Ready condition: True, False, Unknown, or "" if there is no such Node.
	NodeReady string `json:"nodeReady"`
	// Connections, UpBytes and DownBytes count the traffic through the wan since its forwarder started.
	Connections int   `json:"connections"`
	UpBytes     int64 `json:"upBytes"`
	DownBytes   int64 `json:"downBytes"`
}

// Ready reports whether every component is ready.
func (s Status) Ready() bool {
	for _, p := range s.Components {
		if !p.Ready {
			return false
		}
	}
	return true
}

// Status checks every component. It changes nothing.
func (c *Cluster) Status(ctx context.Context) Status {
	s := Status{Dir: c.layout.dir, Runtime: c.state.Spec.Runtime}
	for _, p := range c.allComponents() {
		id := c.state.Processes[p.name]
		status := ComponentStatus{Name: p.name, Log: c.layout.logFile(p.name), Running: id.Alive()}
		if status.Running {
			status.PID, status.Started, status.RSS = id.PID, id.Started, id.RSS()
			status.Problem = readinessProblem(ctx, p)
			status.Ready = status.Problem == ""
		} else {
			status.Problem = "does not run"
		}
		s.Components = append(s.Components, status)
	}
	links, err := c.fetchLinks(ctx)
	if err != nil {
		links = nil // the component "wan" reports the error
	}
	for _, e := range numberedNames("edge", c.state.Spec.Edges) {
		l := links[e]
		edge := EdgeStatus{
			Name: e, Link: string(c.linkState(ctx, e, links)),
			Connections: l.Connections, UpBytes: l.UpBytes, DownBytes: l.DownBytes,
		}
		var n nodeObject
		if c.requestComponent(ctx, kubeClient, "apiserver", "/api/v1/nodes/"+e, &n) == nil {
			edge.NodeReady, _ = n.condition("Ready")
		}
		s.Edges = append(s.Edges, edge)
	}
	return s
}

func readinessProblem(ctx context.Context, p component) string {
	if p.ready == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, tryTimeout)
	defer cancel()
	if err := p.ready(ctx); err != nil {
		return err.Error()
	}
	return ""
}

// Print writes the status as tables.
func (s Status) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	_, _ = fmt.Fprintln(t, "PART\tSTATE\tPID\tAGE\tMEMORY\tPROBLEM")
	for _, p := range s.Components {
		if !p.Running {
			_, _ = fmt.Fprintf(t, "%s\tdown\t-\t-\t-\t%s\n", p.Name, p.Problem)
			continue
		}
		word := "ready"
		if !p.Ready {
			word = "running"
		}
		age := time.Since(p.Started).Truncate(time.Second)
		_, _ = fmt.Fprintf(t, "%s\t%s\t%d\t%s\t%s\t%s\n", p.Name, word, p.PID, age, formatMiB(p.RSS), firstLine(p.Problem))
	}
	_, _ = fmt.Fprintln(t, "\nGATEWAY\tLINK\tNODE READY\tCONNECTIONS\tUP\tDOWN")
	for _, e := range s.Edges {
		ready := e.NodeReady
		if ready == "" {
			ready = "no such node"
		}
		_, _ = fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\n", e.Name, e.Link, ready, e.Connections, formatKiB(e.UpBytes), formatKiB(e.DownBytes))
	}
	return t.Flush()
}

func formatMiB(n int64) string { return fmt.Sprintf("%d MiB", n>>20) }
func formatKiB(n int64) string { return fmt.Sprintf("%d KiB", n>>10) }

func firstLine(s string) string {
	const most = 100
	for i, r := range s {
		if r == '\n' || i >= most {
			return s[:i] + "…"
		}
	}
	return s
}

// Log opens the log of a component.
func (c *Cluster) Log(name string) (*os.File, error) {
	if _, err := c.findComponent(name); err != nil {
		return nil, err
	}
	f, err := os.Open(c.layout.logFile(name))
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

// Kubeconfig returns the path of the admin's kubeconfig.
func (c *Cluster) Kubeconfig() string { return c.layout.kubeconfigFile() }

// Env returns the path of the shell settings.
func (c *Cluster) Env() string { return c.layout.path("env") }

// Dir returns the cluster's folder.
func (c *Cluster) Dir() string { return c.layout.dir }

// Spec returns the cluster's size and kind.
func (c *Cluster) Spec() Spec { return c.state.Spec }

// NATSContext returns the path of the admin's context file for the nats CLI.
func (c *Cluster) NATSContext() string { return c.layout.path("nats", "context.json") }

// PID returns the process id of a component, 0 if it does not run.
func (c *Cluster) PID(name string) int {
	if id := c.state.Processes[name]; id.Alive() {
		return id.PID
	}
	return 0
}
