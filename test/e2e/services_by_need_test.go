package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/frond-edge/frond/api/wire"
)

// byNeedManifest has a Service beside a pod of edge-1, and one in a namespace without pods.
const byNeedManifest = `
apiVersion: v1
kind: Service
metadata: {name: by-need-near}
spec: {selector: {app: by-need}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: by-need}
---
apiVersion: v1
kind: Service
metadata: {name: by-need-far, namespace: by-need}
spec: {selector: {app: by-need}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: by-need, labels: {app: by-need}}
spec:
  nodeSelector: {kubernetes.io/hostname: edge-1}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sleep, "36000"]}
`

// proxyClient returns a client of a gateway's local API as a kube-proxy has it: over TLS, with the node's certificate.
func proxyClient(t *testing.T, edge string) kubernetes.Interface {
	t.Helper()
	cfg := edgeConfig(t, edge)
	kube, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://" + cfg.LocalAPI.Address, QPS: -1, UserAgent: "kube-proxy/test",
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: filepath.Join(shared.Dir(), "pki", "ca.crt"), CertFile: cfg.LocalAPI.CertFile, KeyFile: cfg.LocalAPI.KeyFile,
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// listsServices waits until a program's list of all Services has these.
func listsServices(ctx context.Context, kube kubernetes.Interface, names ...string) string {
	list, err := kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err.Error()
	}
	var found []string
	for _, s := range list.Items {
		found = append(found, s.Name)
	}
	for _, name := range names {
		if !slices.Contains(found, name) {
			return fmt.Sprintf("no %s in %q", name, found)
		}
	}
	return ""
}

// TestServices_ByNeed: a gateway has the Services of its pods' namespaces. It has all of them, and the slices, as soon as a program
// there lists them as a kube-proxy does, and then also without a link and after a restart without one; another gateway does not.
func TestServices_ByNeed(t *testing.T) {
	if shared.Spec().KubeProxy {
		t.Skip("a kube-proxy beside each gateway lists all Services: run it with FROND_E2E_RUNTIME=hollow")
	}
	applyManifest(t, byNeedManifest)
	awaitRunning(t, "app=by-need", 1)
	near := wire.Key{Resource: "services", Namespace: "default", Name: "by-need-near"}
	far := wire.Key{Resource: "services", Namespace: "by-need", Name: "by-need-far"}
	holds := func(edge string, key wire.Key, want bool) func(context.Context) string {
		return func(ctx context.Context) string {
			held, err := storeHolds(ctx, edge, key)
			if err != nil {
				return err.Error()
			}
			if held != want {
				return fmt.Sprintf("%s holds %s: %v", edge, key.Human(), held)
			}
			return ""
		}
	}
	eventually(t, "edge-1 holds the Service of its pod's namespace", holds("edge-1", near, true))
	eventually(t, "edge-1 holds no other", holds("edge-1", far, false))
	eventually(t, "a kubelet's view has what the gateway needs", func(ctx context.Context) string {
		return listsServices(ctx, gatewayClient(t, "edge-1"), near.Name, "kubernetes")
	})
	proxy := proxyClient(t, "edge-1")
	all := func(ctx context.Context) string { return listsServices(ctx, proxy, near.Name, far.Name) }
	eventually(t, "a program that lists all Services has them", all)
	eventually(t, "so has the gateway", holds("edge-1", far, true))
	if missing := holds("edge-2", far, false)(t.Context()); missing != "" {
		t.Error(missing)
	}
	if _, err := proxy.DiscoveryV1().EndpointSlices("").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("slices: %v", err)
	}
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Error(err)
		}
	})
	err := errors.Join(shared.Kill(t.Context(), "edge-1"), shared.Cut(t.Context(), "edge-1", false), shared.Start(t.Context(), "edge-1"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has them after a restart without a link", all)
}
