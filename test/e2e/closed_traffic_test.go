package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/frond-edge/frond/internal/devcluster"
)

// closedManifest is a Service whose traffic stays in a NodeGroup, with a web server and a client on each of two gateways, and two groups.
const closedManifest = `
apiVersion: apps.kubeedge.io/v1alpha1
kind: NodeGroup
metadata: {name: closed-1}
spec: {nodes: [edge-1]}
---
apiVersion: apps.kubeedge.io/v1alpha1
kind: NodeGroup
metadata: {name: closed-2}
spec: {nodes: [edge-2]}
---
apiVersion: v1
kind: Service
metadata: {name: closed, annotations: {apps.kubeedge.io/service-topology: range-nodegroup}}
spec: {clusterIP: 10.96.0.79, selector: {app: closed}, ports: [{port: 80, targetPort: 8080}]}
` + closedPods

const closedPods = `---
apiVersion: v1
kind: Pod
metadata: {name: closed-web-1, labels: {app: closed, test: closed}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-1}
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: localhost/frond/http:dev, imagePullPolicy: Never}]
---
apiVersion: v1
kind: Pod
metadata: {name: closed-web-2, labels: {app: closed, test: closed}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-2}
  terminationGracePeriodSeconds: 1
  containers: [{name: web, image: localhost/frond/http:dev, imagePullPolicy: Never}]
---
apiVersion: v1
kind: Pod
metadata: {name: closed-client-1, labels: {test: closed}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-1}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: client, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sh, -c, %[2]q], volumeMounts: [{name: out, mountPath: /out}]}
  volumes: [{name: out, hostPath: {path: %[1]s-1, type: DirectoryOrCreate}}]
---
apiVersion: v1
kind: Pod
metadata: {name: closed-client-2, labels: {test: closed}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-2}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: client, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sh, -c, %[2]q], volumeMounts: [{name: out, mountPath: /out}]}
  volumes: [{name: out, hostPath: {path: %[1]s-2, type: DirectoryOrCreate}}]
`

// closedClient records who answers the Service.
const closedClient = `while true; do timeout 1 wget -qO- http://10.96.0.79/hostname >> /out/heard; echo >> /out/heard; sleep 0.1; done`

// closedHearings is what the two clients have written.
type closedHearings struct {
	*testing.T
	out string
}

// heard returns who answered the client of a gateway, from an offset on, and the offset of its end.
func (h closedHearings) heard(edge, from int) (names []string, end int) {
	h.Helper()
	all, err := os.ReadFile(filepath.Join(fmt.Sprintf("%s-%d", h.out, edge), "heard"))
	if err != nil && !os.IsNotExist(err) {
		h.Fatal(err)
	}
	return strings.Fields(string(all[min(from, len(all)):])), len(all)
}

// onlyOwn waits for answers to the client of a gateway from now on, and fails at one from another gateway since an offset.
func (h closedHearings) onlyOwn(what string, edge, since int) {
	h.Helper()
	_, now := h.heard(edge, 0)
	own := fmt.Sprintf("closed-web-%d", edge)
	eventually(h.T, what, func(context.Context) string {
		names, _ := h.heard(edge, since)
		for _, name := range names {
			if name != own {
				h.Fatalf("%s: a pod of edge-%d was answered by %s", what, edge, name)
			}
		}
		if names, _ = h.heard(edge, now); len(names) < 12 { // without a filter each is the other gateway's in half of the cases
			return fmt.Sprintf("%d answers", len(names))
		}
		return ""
	})
}

// TestClosedTraffic_StaysInGroup: a pod of one NodeGroup never meets an endpoint of another: with a link, without it, and after a boot without
// it, in which the endpoint itself gets another address. When the groups change it meets those of its new group.
func TestClosedTraffic_StaysInGroup(t *testing.T) {
	needContainers(t)
	if !shared.Spec().Services {
		t.Skip("no Services: they need root and nft (frond dev up --services)")
	}
	h := closedHearings{t, filepath.Join(shared.Dir(), "closed")}
	t.Cleanup(func() {
		for _, edge := range []string{"-1", "-2"} {
			_ = os.RemoveAll(h.out + edge)
		}
	})
	applyManifest(t, fmt.Sprintf(closedManifest, h.out, closedClient))
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	awaitRunning(t, "test=closed", 4)
	h.onlyOwn("online", 1, 0)
	h.onlyOwn("online", 2, 0)
	if err := shared.Cut(t.Context(), "edge-1", false); err != nil {
		t.Fatal(err)
	}
	h.onlyOwn("without a link", 1, 0)
	result, err := shared.Reboot(t.Context(), "edge-1", devcluster.Reboot{Offline: true, Timeout: waitTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("offline reboot: %d pods Running after %.1f s", result.Pods, result.Running)
	h.onlyOwn("after a boot without a link", 1, 0)
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	h.onlyOwn("online again", 1, 0)
	h.onlyOwn("at the other gateway", 2, 0)
	setNodes := func(group, nodes string) {
		t.Helper()
		runKubectl(t, "patch", "nodegroup", group, "--type=merge", "-p", fmt.Sprintf(`{"spec":{"nodes":[%s]}}`, nodes))
	}
	_, before := h.heard(1, 0)
	setNodes("closed-2", "")
	setNodes("closed-1", `"edge-1","edge-2"`)
	eventually(t, "gateways of one group meet each other", func(context.Context) string {
		names, _ := h.heard(1, before)
		if !strings.Contains(strings.Join(names, " "), "closed-web-2") {
			return fmt.Sprint("heard ", names)
		}
		return ""
	})
	setNodes("closed-1", `"edge-1"`)
	setNodes("closed-2", `"edge-2"`)
	eventually(t, "gateways of two groups do not", func(context.Context) string {
		names, _ := h.heard(1, before)
		if last := names[max(len(names)-12, 0):]; len(last) < 12 || strings.Contains(strings.Join(last, " "), "closed-web-2") {
			return fmt.Sprint("heard ", last)
		}
		return ""
	})
	_, since := h.heard(1, 0)
	h.onlyOwn("after the groups have changed", 1, since)
}
