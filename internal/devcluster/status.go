package devcluster

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/process"
	"github.com/frond-edge/frond/internal/devcluster/request"
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

// readStatus checks every component.
func readStatus(ctx context.Context, c *Cluster) Status {
	s := Status{Dir: c.f.Layout.Dir, Runtime: c.f.State.Spec.Runtime}
	for _, p := range c.catalog.all() {
		id := c.f.State.Processes[p.Name]
		status := ComponentStatus{Name: p.Name, Log: c.f.Layout.LogFile(p.Name), Running: id.Alive()}
		if status.Running {
			status.PID, status.Started, status.RSS = id.PID, id.Started, id.RSS()
			status.Problem = process.Problem(ctx, p)
			status.Ready = status.Problem == ""
		} else {
			status.Problem = "does not run"
		}
		s.Components = append(s.Components, status)
	}
	links, err := c.States(ctx)
	if err != nil {
		links = nil // the component "wan" reports the error
	}
	for _, e := range folder.Names("edge", c.f.State.Spec.Edges) {
		l := links[e]
		edge := EdgeStatus{
			Name: e, Link: string(c.StateOf(ctx, e, links)),
			Connections: l.Connections, UpBytes: l.UpBytes, DownBytes: l.DownBytes,
		}
		var n corev1.Node
		if request.Component(ctx, c.f, request.Kube, "apiserver", "/api/v1/nodes/"+e, &n) == nil {
			edge.NodeReady = string(readyCondition(&n).Status)
		}
		s.Edges = append(s.Edges, edge)
	}
	return s
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
