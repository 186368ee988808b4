package e2e_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// TestTop waits until metrics-server has two samples; it scrapes every 10 s. kubectl rounds memory down to whole MiB, so the pods hold some.
func TestTop(t *testing.T) {
	const busy = "held=$(yes | head -c 4000000); while true; do sleep 0.1; done"
	applyManifest(t, scriptPod("top-1", "edge-1", busy))
	applyManifest(t, scriptPod("top-2", "edge-2", busy))
	awaitRunning(t, "app=top-1", 1)
	awaitRunning(t, "app=top-2", 1)
	shows := func(ctx context.Context, words []string, args ...string) string {
		out, err := shared.Kubectl(ctx, "", append([]string{"top"}, args...)...)
		if err != nil {
			return err.Error()
		}
		for _, word := range words {
			if row := rowOf(out, word); len(row) < 3 || row[1] == "0m" || strings.HasPrefix(row[1], "<") || strings.HasPrefix(row[2], "0") {
				return fmt.Sprintf("%s: %q", word, out)
			}
		}
		return ""
	}
	eventually(t, "the use of pods", func(ctx context.Context) string { return shows(ctx, []string{"top-1", "top-2"}, "pod") })
	eventually(t, "the use of nodes", func(ctx context.Context) string { return shows(ctx, []string{"edge-1", "edge-2"}, "node") })
	eventually(t, "the use of containers", func(ctx context.Context) string {
		out, err := shared.Kubectl(ctx, "", "top", "pod", "top-1", "--containers")
		if row := rowOf(out, "top-1"); err != nil || len(row) != 4 || row[1] != "main" {
			return fmt.Sprintf("%q %v", out, err)
		}
		return ""
	})

	// A gateway that is offline is unknown; the others are unchanged.
	if err := shared.Cut(t.Context(), "edge-2", false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-2"); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "an offline gateway is unknown", func(ctx context.Context) string {
		out, err := shared.Kubectl(ctx, "", "top", "node", "--show-capacity=false")
		if row := rowOf(out, "edge-2"); err != nil || len(row) < 2 || row[1] != "<unknown>" {
			return fmt.Sprintf("%q %v", out, err)
		}
		return shows(ctx, []string{"edge-1"}, "node")
	})
	eventually(t, "the pods of the others", func(ctx context.Context) string { return shows(ctx, []string{"top-1"}, "pod") })
}

// rowOf returns the words of the line that begins with a word.
func rowOf(table, first string) []string {
	for line := range strings.Lines(table) {
		if row := strings.Fields(line); len(row) > 0 && row[0] == first {
			return row
		}
	}
	return nil
}

// TestNodesProxy calls kubelets through the apiserver, which calls only global addresses, and resolves names itself.
func TestNodesProxy(t *testing.T) {
	for _, node := range []string{"edge-1", "edge-2"} {
		for path, want := range map[string]string{
			"healthz": "ok", "stats/summary": fmt.Sprintf("%q: %q", "nodeName", node), "metrics": fmt.Sprintf("kubelet_node_name{node=%q} 1", node),
			"metrics/resource": "node_cpu_usage_seconds_total", "configz": "kubeletconfig", "pods": `"kind":"PodList"`,
		} {
			eventually(t, path+" of "+node, func(ctx context.Context) string {
				out, err := shared.Kubectl(ctx, "", "get", "--raw", "/api/v1/nodes/"+node+"/proxy/"+path)
				if err != nil || !strings.Contains(out, want) {
					return fmt.Sprintf("%.300q %v, want %q", out, err, want)
				}
				return ""
			})
		}
	}
	if out, err := shared.Kubectl(t.Context(), "", "get", "--raw", "/api/v1/nodes/edge-1:22/proxy/"); err == nil {
		t.Errorf("a port that the node does not offer: %q", out)
	}
}
