package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// siteAddress is a common address of the first machine behind a router.
const siteAddress = "192.168.1.10"

// TestSameAddress_TwoSites gives two gateways the same address, and so the same address and port of their kubelets, as at two
// sites behind NAT. Each pod is reached at its own site, also by concurrent requests.
func TestSameAddress_TwoSites(t *testing.T) {
	needContainers(t)
	edges := []string{"edge-1", "edge-2"}
	moveToSites(t, edges, siteAddress)
	kube := sharedKube
	eventually(t, "both nodes have one address and port", func(ctx context.Context) string {
		for _, edge := range edges {
			node, err := kube.CoreV1().Nodes().Get(ctx, edge, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
			if a := node.Status.Addresses; len(a) == 0 || a[0].Type != corev1.NodeInternalIP || a[0].Address != siteAddress || port != 10250 {
				return fmt.Sprintf("%s: %v, port %d", edge, a, port)
			}
		}
		return ""
	})
	for _, edge := range edges {
		applyManifest(t, scriptPod("at-"+edge, edge, "echo this is $HOSTNAME; sleep 36000"))
		awaitRunning(t, "app=at-"+edge, 1)
	}
	var g errgroup.Group
	for range 3 {
		for _, edge := range edges {
			pod := "at-" + edge
			for _, ask := range []struct {
				want string
				args []string
			}{
				{"this is " + pod + "\n", []string{"logs", pod}},
				{pod + "\n", []string{"exec", pod, "--", "cat", "/etc/hostname"}},
			} {
				g.Go(func() error {
					out, err := shared.Kubectl(t.Context(), "", ask.args...)
					if err != nil || out != ask.want {
						return fmt.Errorf("kubectl %v: %q, %w", ask.args, out, err)
					}
					return nil
				})
			}
		}
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// moveToSites adds an address to each gateway, makes its kubelet use it, and undoes that when the test ends.
func moveToSites(t *testing.T, edges []string, address string) {
	t.Helper()
	t.Cleanup(func() { restartGateways(t, edges) })
	line := regexp.MustCompile(`nodeIP: .*`)
	for _, edge := range edges {
		path := filepath.Join(shared.Dir(), edge, "edgecore.yaml")
		before, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		changeAddress(t, edge, "add", address)
		t.Cleanup(func() {
			if err := os.WriteFile(path, before, 0o600); err != nil {
				t.Error(err)
			}
			changeAddress(t, edge, "del", address)
		})
		if err := os.WriteFile(path, line.ReplaceAll(before, []byte("nodeIP: "+address)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	restartGateways(t, edges)
}

// changeAddress adds or deletes an address inside a gateway's network namespace.
func changeAddress(t *testing.T, edge, verb, address string) {
	t.Helper()
	namespace := fmt.Sprintf("--net=/proc/%d/ns/net", shared.PID(edge))
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "nsenter", namespace, "ip", "addr", verb, address+"/32", "dev", "wan0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("ip addr %s at %s: %v: %s", verb, edge, err, out)
	}
}

// restartGateways kills gateways and starts them again with their present files.
func restartGateways(t *testing.T, edges []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitTimeout)
	defer cancel()
	for _, edge := range edges {
		if err := shared.Kill(ctx, edge); err != nil {
			t.Error(err)
		}
	}
	for _, edge := range edges {
		if err := shared.Start(ctx, edge); err != nil {
			t.Error(err)
		}
	}
}
