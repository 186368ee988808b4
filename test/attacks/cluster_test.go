package attacks_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/clustertest"
)

const (
	// waitTimeout bounds a wait for something that should take seconds: the machines are shared and slow at times.
	waitTimeout = 3 * time.Minute
	// victim is the gateway whose secret the attacker looks for, stolen the gateway whose disk it has: a neighbour in the same cell of the
	// hub, which TestAttackerSharesCellWithVictim checks.
	victim, stolen = "edge-1", "edge-5"
	// canary must never reach an attacker. It has 30 bytes, so that its base64 does not depend on what follows.
	canary = "CANARY-of-the-other-gateway-07"
)

// shared is the one cluster of all tests, and kube its admin's client.
var (
	shared *devcluster.Cluster
	kube   kubernetes.Interface
)

func TestMain(m *testing.M) {
	os.Exit(clustertest.Suite{
		DirVariable: "FROND_ATTACKS_DIR", Prefix: "frond-attacks-",
		Spec:    devcluster.Spec{Edges: 5, Cloudcores: 2, Hubs: 3, Runtime: devcluster.Hollow, NoMetrics: true},
		Prepare: prepareCluster,
	}.Run(m))
}

// prepareCluster connects to the cluster and gives each gateway a pod with a secret of its own.
func prepareCluster(ctx context.Context, cluster *devcluster.Cluster) error {
	shared = cluster
	cfg, err := clientcmd.BuildConfigFromFlags("", shared.Kubeconfig())
	if err != nil {
		return err
	}
	cfg.QPS = -1
	if kube, err = kubernetes.NewForConfig(cfg); err != nil {
		return err
	}
	var all []string
	for node, content := range map[string]string{victim: canary, stolen: "its own"} {
		all = append(all, fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: of-%[1]s}
stringData: {word: %[2]q}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: of-%[1]s}
---
apiVersion: v1
kind: Pod
metadata: {name: on-%[1]s, labels: {app: attacked}}
spec:
  nodeName: %[1]s
  serviceAccountName: of-%[1]s
  terminationGracePeriodSeconds: 1
  tolerations: [{operator: Exists}]
  containers:
  - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sleep, "36000"], volumeMounts: [{name: word, mountPath: /word}]}
  volumes: [{name: word, secret: {secretName: of-%[1]s}}]
`, node, content))
	}
	if _, err := shared.Kubectl(ctx, strings.Join(all, "---"), "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := shared.Kubectl(ctx, "", "wait", "--for=condition=Ready", "pod", "-l", "app=attacked", "--timeout=100s"); err != nil {
		return err
	}
	// The stolen gateway is in the attacker's hands, and off; the others only lend it a name.
	for _, node := range []string{"edge-2", "edge-3", "edge-4", stolen} {
		if shared.PID(node) == 0 {
			continue
		}
		if err := shared.Kill(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// eventually waits until a condition holds; missing describes what is missing, "" when it holds.
func eventually(t *testing.T, what string, missing func(ctx context.Context) string) {
	t.Helper()
	kit.Until(t, what, waitTimeout, 100*time.Millisecond, kit.FromText(missing))
}

var victimChanges atomic.Int64

// changeVictim changes the victim's secret and its pod, so that there is traffic to overhear. It waits until the gateway has the new secret
// and the cloud the pod's new state, which proves that delivery and reports still work.
func changeVictim(t *testing.T) {
	t.Helper()
	word := fmt.Sprintf("%s %d %d", canary, time.Now().UnixNano(), victimChanges.Add(1))
	patch := fmt.Appendf(nil, `{"stringData":{"word":%q}}`, word)
	if _, err := kube.CoreV1().Secrets("default").Patch(t.Context(), "of-"+victim, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the victim gets its secret", func(ctx context.Context) string {
		raw, err := shared.StoreGet(ctx, victim, wire.Key{Resource: "secrets", Namespace: "default", Name: "of-" + victim})
		if err != nil {
			return err.Error()
		}
		var s corev1.Secret
		if err := json.Unmarshal(raw, &s); err != nil {
			return err.Error()
		}
		if string(s.Data["word"]) != word {
			return "it holds " + string(s.Data["word"])
		}
		return ""
	})
}

// victimState returns the victim's state in Kubernetes, as text that differs after any change an attacker could make: the pod's identity
// and status, the Node's labels, taints, addresses and conditions, and its secret.
func victimState(ctx context.Context) (string, error) {
	pod, err := kube.CoreV1().Pods("default").Get(ctx, "on-"+victim, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	node, err := kube.CoreV1().Nodes().Get(ctx, victim, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	var conditions []string
	for _, c := range node.Status.Conditions {
		conditions = append(conditions, fmt.Sprint(c.Type, "=", c.Status))
	}
	view := map[string]any{
		"pod": pod.UID, "status": pod.Status, "labels": pod.Labels, "node": node.UID, "node labels": node.Labels, "taints": node.Spec.Taints,
		"addresses": node.Status.Addresses, "conditions": conditions, "owners": node.OwnerReferences,
	}
	text, err := json.Marshal(view)
	return string(text), err
}

// checkUnharmed runs an attack and checks that the victim is unchanged and still works.
func checkUnharmed(t *testing.T, attack func()) {
	t.Helper()
	changeVictim(t)
	before, err := victimState(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	attack()
	changeVictim(t)
	eventually(t, "the victim is what it was", func(ctx context.Context) string {
		after, err := victimState(ctx)
		if err := errors.Join(err); err != nil {
			return err.Error()
		}
		if after != before {
			return fmt.Sprintf("\n%s\n%s", before, after)
		}
		return ""
	})
}
