package attacks_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/wire"
)

// TestGateway_WorksWithWrongClock boots a gateway with a clock ten years ahead or behind, and makes the clock jump while it runs. Each time
// the gateway links again, receives a change, and runs and reports a pod. It stays Ready, renews no key, and does not flood the cluster with
// certificate requests. It takes some 10 s each way.
func TestGateway_WorksWithWrongClock(t *testing.T) {
	const node = "edge-2" // off in all other tests
	const years = 10 * 365 * 24 * time.Hour
	for name, began := range map[string]time.Duration{"ten years behind": -years, "ten years ahead": years} {
		t.Run(name, func(t *testing.T) {
			key, asked := nodeIdentity(t.Context(), t, node).Key, countCSRs(t, node)
			first := schedulePod(t, node)
			clock := bootWithClock(t, node, began)
			awaitPodReady(t, first)
			for _, ahead := range []time.Duration{0, -began, began} {
				if err := clock.set(ahead); err != nil {
					t.Fatal(err)
				}
				before := linkReconnects(t, node)
				if err := shared.Reset(t.Context(), node); err != nil {
					t.Fatal(err)
				}
				eventually(t, "a new link, and a change over it", func(ctx context.Context) string {
					if n, err := shared.Metric(ctx, node, "frond_link_reconnects_total"); err != nil || n <= before {
						return fmt.Sprint(n, " links, ", err)
					}
					return ""
				})
				checkChangeArrives(t, node)
				awaitPodReady(t, schedulePod(t, node))
			}
			if n, err := shared.Metric(t.Context(), node, "frond_identity_renewals_total"); err != nil || n != 0 {
				t.Errorf("%v renewals, %v", n, err)
			}
			if now := nodeIdentity(t.Context(), t, node).Key; now != key {
				t.Errorf("its key was %s and is %s", key, now)
			}
			if began > 0 {
				<-time.After(5 * time.Second) // a gateway that considers each certificate expired requests one a second
			}
			// One for its first certificate; a second one if the first request was cut short.
			if n := countCSRs(t, node) - asked; n > 2 {
				t.Errorf("%d requests for certificates", n)
			}
		})
	}
}

// countCSRs counts a gateway's certificate requests.
func countCSRs(t *testing.T, node string) (n int) {
	t.Helper()
	list, err := kube.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if list.Items[i].Spec.Username == "system:node:"+node {
			n++
		}
	}
	return n
}

func linkReconnects(t *testing.T, node string) float64 {
	t.Helper()
	n, err := shared.Metric(t.Context(), node, "frond_link_reconnects_total")
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// schedulePod binds one more pod to a gateway, which needs the ConfigMap of checkChangeArrives.
func schedulePod(t *testing.T, node string) (name string) {
	t.Helper()
	name = fmt.Sprintf("clock-%d", uniqueNumber.Add(1))
	manifest := fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata: {name: of-%[2]s}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  containers:
  - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sleep, "36000"], volumeMounts: [{name: v, mountPath: /v}]}
  volumes: [{name: v, configMap: {name: of-%[2]s}}]
`, name, node)
	if _, err := shared.Kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the gateway is off by then
		now := int64(0)
		_ = kube.CoreV1().Pods("default").Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	})
	return name
}

// awaitPodReady waits until a pod and its Node are ready.
func awaitPodReady(t *testing.T, pod string) {
	t.Helper()
	eventually(t, pod+" is Ready", func(ctx context.Context) string {
		p, err := kube.CoreV1().Pods("default").Get(ctx, pod, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		for _, c := range p.Status.Conditions {
			if c.Type != corev1.PodReady || c.Status != corev1.ConditionTrue {
				continue
			}
			n, err := kube.CoreV1().Nodes().Get(ctx, p.Spec.NodeName, metav1.GetOptions{})
			if err != nil {
				return err.Error()
			}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
					return fmt.Sprintf("its node: %+v", c)
				}
			}
			return ""
		}
		return fmt.Sprintf("%+v", p.Status)
	})
}

// checkChangeArrives changes a ConfigMap and waits until the gateway has it.
func checkChangeArrives(t *testing.T, node string) {
	t.Helper()
	value := fmt.Sprint(time.Now().UnixNano())
	patch := fmt.Appendf(nil, `{"data":{"v":%q}}`, value)
	if _, err := kube.CoreV1().ConfigMaps("default").Patch(t.Context(), "of-"+node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, node+" takes a change", func(ctx context.Context) string {
		raw, err := shared.StoreGet(ctx, node, wire.Key{Resource: "configmaps", Namespace: "default", Name: "of-" + node})
		if err != nil {
			return err.Error()
		}
		var m corev1.ConfigMap
		if err := json.Unmarshal(raw, &m); err != nil || m.Data["v"] != value {
			return fmt.Sprint("it holds ", m.Data, err)
		}
		return ""
	})
}
