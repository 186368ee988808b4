package e2e_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/toolchain"
)

// directCluster returns a cluster whose apiserver has no proxy configuration.
func directCluster(t *testing.T) *devcluster.Cluster {
	t.Helper()
	dir, err := os.MkdirTemp("", "fd") //nolint:usetesting // sockets need a short path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // best effort in the temporary folder
	c, err := devcluster.Up(t.Context(), devcluster.Options{
		Dir: dir, Progress: os.Stderr, Timeout: 5 * time.Minute,
		Spec: devcluster.Spec{Edges: 2, Cloudcores: 2, Hubs: 1, Runtime: devcluster.Hollow, Direct: true},
		Programs: func(ctx context.Context, _ devcluster.Spec) (toolchain.Paths, error) {
			return toolchain.Ensure(ctx, toolchain.Request{Kube: true, Nats: true, Frond: true}, os.Stderr)
		},
	})
	t.Cleanup(func() {
		if c == nil {
			return
		}
		if err := c.Down(context.WithoutCancel(t.Context()), false); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestDirectMode uses kubectl with an apiserver that has none of our flags: each node has a port at the cloudcores.
func TestDirectMode(t *testing.T) {
	t.Parallel() // with a cluster of its own
	c := directCluster(t)
	says := func(what, want string, args ...string) {
		t.Helper()
		eventually(t, what, func(ctx context.Context) string {
			began := time.Now()
			out, err := c.Kubectl(ctx, "", args...)
			if err != nil {
				out += " " + err.Error()
			}
			if !strings.Contains(out, want) {
				return fmt.Sprintf("%s after %s", out, time.Since(began).Round(time.Millisecond))
			}
			if err != nil {
				t.Logf("%s: after %s: %s", what, time.Since(began).Round(time.Millisecond), out)
			}
			return ""
		})
	}
	for _, node := range []string{"edge-1", "edge-2"} {
		if _, err := c.Kubectl(t.Context(), scriptPod("on-"+node, node, "echo hello of "+node+"; sleep 36000"), "apply", "-f", "-"); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range []string{"edge-1", "edge-2"} {
		says("logs", "hello of "+node, "logs", "on-"+node)
		says("exec", "inside "+node, "exec", "on-"+node, "--", "sh", "-c", "echo inside "+node)
	}
	if proxied := !strings.Contains(nodeAddress(t, c, "edge-1"), "127.0.0.1"); proxied { // nodes/proxy does not call loopback addresses
		for _, node := range []string{"edge-1", "edge-2"} {
			says("nodes/proxy", fmt.Sprintf("kubelet_node_name{node=%q} 1", node), "get", "--raw", "/api/v1/nodes/"+node+"/proxy/metrics")
		}
	}
	says("the use of pods", "on-edge-2", "top", "pod")

	// Any cloudcore serves each port.
	for _, victim := range []string{"cloudcore-1", "cloudcore-2"} {
		if err := c.Kill(t.Context(), victim); err != nil {
			t.Fatal(err)
		}
		says("logs without "+victim, "hello of edge-2", "logs", "on-edge-2")
		if err := c.Start(t.Context(), victim); err != nil {
			t.Fatal(err)
		}
	}

	if err := c.Cut(t.Context(), "edge-1", false); err != nil {
		t.Fatal(err)
	}
	says("why a node is not reached", "node edge-1 ", "logs", "on-edge-1") // that it does not answer; later, since when it is offline
	says("the same of exec", "node edge-1 ", "exec", "on-edge-1", "--", "true")
	says("another node", "hello of edge-2", "logs", "on-edge-2")
}

// nodeAddress returns the address and the port at which the apiserver calls a node.
func nodeAddress(t *testing.T, c *devcluster.Cluster, node string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), "", "get", "node", node, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}:{.status.daemonEndpoints.kubeletEndpoint.Port}`)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s is called at %s", node, out)
	return out
}
