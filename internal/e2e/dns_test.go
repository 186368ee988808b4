package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/frond-edge/frond/internal/devcluster"
)

// names is upstream's CoreDNS on edge-1 with nothing but what every pod is told of Kubernetes, a web server behind a Service, and
// a pod that asks for it by name all the time.
const names = `
apiVersion: v1
kind: Namespace
metadata: {name: names}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: names}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: coredns}
rules:
- {apiGroups: [""], resources: [services, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: coredns}
subjects: [{kind: ServiceAccount, name: coredns, namespace: names}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: names}
data:
  Corefile: |
    .:53 {
      errors
      health
      ready
      cache 1
      kubernetes cluster.local in-addr.arpa
    }
---
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: names}
spec: {clusterIP: 10.96.0.10, internalTrafficPolicy: Local, selector: {app: coredns}, ports: [{name: dns, port: 53, protocol: UDP}, {name: tcp, port: 53}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: names}
spec: {internalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: coredns, namespace: names, labels: {app: coredns}}
spec:
  serviceAccountName: coredns
  nodeSelector: {kubernetes.io/hostname: edge-1}
  terminationGracePeriodSeconds: 1
  dnsPolicy: Default
  containers:
  - name: coredns
    image: localhost/frond/tools:dev
    imagePullPolicy: Never
    command: [/program/coredns, -conf, /etc/coredns/Corefile]
    readinessProbe: {httpGet: {path: /ready, port: 8181}, periodSeconds: 1}
    volumeMounts: [{name: program, mountPath: /program, readOnly: true}, {name: config, mountPath: /etc/coredns, readOnly: true}]
  volumes:
  - {name: program, hostPath: {path: %[1]s, type: Directory}}
  - {name: config, configMap: {name: coredns}}
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
metadata: {name: asker, namespace: names, labels: {app: asker}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-1}
  terminationGracePeriodSeconds: 1
  dnsPolicy: None
  dnsConfig: {nameservers: [10.96.0.10], searches: [names.svc.cluster.local, svc.cluster.local], options: [{name: ndots, value: "5"}]}
  containers:
  - {name: asker, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sh, -c, %[3]q], volumeMounts: [{name: out, mountPath: /out}]}
  volumes: [{name: out, hostPath: {path: %[2]s, type: DirectoryOrCreate}}]
`

// askingScript asks by the short name and by another whole one, whose Service is made later.
const askingScript = `while true; do
  wget -qO- -T 2 http://web/hostname >> /out/web; echo >> /out/web
  wget -qO- -T 2 http://later.names.svc.cluster.local/hostname >> /out/later; echo >> /out/later
  sleep 0.2
done`

const laterName = `
apiVersion: v1
kind: Service
metadata: {name: later, namespace: names}
spec: {internalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// TestCoreDNSOnAGateway: the DNS server of a gateway's pods is upstream's, in a pod of the gateway, which has its Services from the gateway's
// own API. Names are resolved with the link, without it, and after a boot without it.
func TestCoreDNSOnAGateway(t *testing.T) {
	needContainers(t)
	if !shared.Spec().KubeProxy {
		t.Skip("no kube-proxy, so no Services: it needs root and nft (frond dev up --kube-proxy)")
	}
	dir := filepath.Join(shared.Dir(), "edge-1", "names")
	program, out := filepath.Join(dir, "program"), filepath.Join(dir, "out")
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(program, "coredns"), ".")
	build.Dir, build.Env = filepath.Join("..", "..", "tools", "coredns"), append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build CoreDNS: %v: %s", err, text)
	}
	apply(t, fmt.Sprintf(names, program, out, askingScript))
	hears := func(file string) {
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
			if heard := strings.TrimSpace(string(all[min(len(old), len(all)):])); !strings.Contains(heard, "web\n") {
				return fmt.Sprintf("heard %q", heard)
			}
			return ""
		})
	}
	hears("web")
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	result, err := shared.Reboot(t.Context(), "edge-1", devcluster.Reboot{Offline: true, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("offline reboot: %d pods Running after %.1f s", result.Pods, result.Running)
	hears("web")
	if _, err := shared.Kubectl(t.Context(), laterName, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if err := shared.Heal(t.Context(), "edge-1"); err != nil {
		t.Fatal(err)
	}
	hears("later")
}
