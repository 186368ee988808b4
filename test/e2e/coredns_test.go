package e2e_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/internal/devcluster"
)

// dnsManifest is a web server on each gateway, each behind a Service, and a pod on edge-1 that resolves their names repeatedly, with default
// settings.
const dnsManifest = `
apiVersion: v1
kind: Namespace
metadata: {name: names}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: names}
spec: {internalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: names}
spec: {selector: {app: far}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: names, labels: {app: web}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-1}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: web, image: localhost/frond/http:dev, imagePullPolicy: Never}
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: names, labels: {app: far}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-2}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: web, image: localhost/frond/http:dev, imagePullPolicy: Never}
---
apiVersion: v1
kind: Pod
metadata: {name: asker, namespace: names, labels: {app: asker}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-1}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: asker, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sh, -c, %[2]q], volumeMounts: [{name: out, mountPath: /out}]}
  volumes: [{name: out, hostPath: {path: %[1]s, type: DirectoryOrCreate}}]
`

// askingScript resolves the apiserver's name in full, as busybox' nslookup has no search list, a Service by its short name, one whose pod is
// on the other gateway, and by its full name one that is created later.
const askingScript = `while true; do
  nslookup kubernetes.default.svc.cluster.local >> /out/kubernetes 2>&1
  timeout 2 wget -qO- http://web/hostname >> /out/web; echo >> /out/web
  timeout 2 wget -qO- http://far/hostname >> /out/far; echo >> /out/far
  timeout 2 wget -qO- http://later.names.svc.cluster.local/hostname >> /out/later; echo >> /out/later
  sleep 0.2
done`

const laterServiceManifest = `
apiVersion: v1
kind: Service
metadata: {name: later, namespace: names}
spec: {internalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// TestCoreDNS_ResolvesOffline: the DNS server of a gateway's pods is upstream's, in a pod of the gateway, and reads Services from the gateway's
// own API. Names are resolved with the link, without it, and after a boot without it. A pod of another gateway is reached over the link.
func TestCoreDNS_ResolvesOffline(t *testing.T) {
	needContainers(t)
	if !shared.Spec().Services {
		t.Skip("no Services: they need root and nft (frond dev up --services)")
	}
	out := filepath.Join(shared.Dir(), "edge-1", "names")
	t.Cleanup(func() { _ = os.RemoveAll(out) })
	applyManifest(t, fmt.Sprintf(dnsManifest, out, askingScript))
	hears := func(file, answer string) {
		t.Helper()
		path := filepath.Join(out, file)
		old, err := os.ReadFile(path)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		eventually(t, "the Service "+file+" is found by its name, and answers", func(context.Context) string {
			all, err := os.ReadFile(path)
			if err != nil {
				return err.Error()
			}
			if heard := strings.TrimSpace(string(all[min(len(old), len(all)):])); !strings.Contains(heard+"\n", answer+"\n") {
				return fmt.Sprintf("heard %q", heard)
			}
			return ""
		})
	}
	local := func() {
		t.Helper()
		hears("kubernetes", "10.96.0.1")
		hears("web", "web")
	}
	local()
	hears("far", "far")
	uniqueAddresses(t)
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	if err := shared.Cut(t.Context(), "edge-1", false); err != nil {
		t.Fatal(err)
	}
	local()
	result, err := shared.Reboot(t.Context(), "edge-1", devcluster.Reboot{Offline: true, Timeout: waitTimeout})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("offline reboot: %d pods Running after %.1f s", result.Pods, result.Running)
	local()
	if _, err := shared.Kubectl(t.Context(), laterServiceManifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	hears("later", "web")
	hears("far", "far")
	uniqueAddresses(t)
}

// uniqueAddresses fails unless each pod of the test has an address of its Node's podCIDR that no other pod has.
func uniqueAddresses(t *testing.T) {
	t.Helper()
	eventually(t, "each pod has an address of its Node's podCIDR", func(ctx context.Context) string {
		list, err := sharedKube.CoreV1().Pods("names").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		holders := map[string]string{}
		for i := range list.Items {
			p := &list.Items[i]
			node, err := sharedKube.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			ip, _ := netip.ParseAddr(p.Status.PodIP) // the zero address is in no range
			if cidr, err := netip.ParsePrefix(node.Spec.PodCIDR); err != nil || !cidr.Contains(ip) {
				return fmt.Sprintf("%s on %s has %q, want one of %s", p.Name, node.Name, p.Status.PodIP, node.Spec.PodCIDR)
			}
			if other := holders[p.Status.PodIP]; other != "" {
				return fmt.Sprintf("%s and %s have %s", other, p.Name, p.Status.PodIP)
			}
			holders[p.Status.PodIP] = p.Name
		}
		if len(holders) != 3 {
			return fmt.Sprintf("%d pods, want 3", len(holders))
		}
		return ""
	})
}
