package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/clustertest"
)

// waitTimeout bounds a wait for something that should take seconds: the machines are shared and slow at times.
const waitTimeout = 2 * time.Minute

// runtimeVariable is the environment variable that names the runtime of a new cluster; without it root has real containers.
const runtimeVariable = "FROND_E2E_RUNTIME"

// shared is the one cluster of all tests, and sharedKube its admin's client.
var (
	shared     *devcluster.Cluster
	sharedKube kubernetes.Interface
)

func TestMain(m *testing.M) {
	if address := os.Getenv(oldTLS); address != "" {
		os.Exit(speakOldTLS(context.Background(), address)) //nolint:forbidigo // a TestMain has no other
	}
	whole, err := canRouteServices()
	if err != nil {
		panic(err) // an exit code would make no test a success, as clustertest tells
	}
	os.Exit(clustertest.Suite{
		DirVariable: "FROND_E2E_DIR", Prefix: "frond-e2e-", Spec: devcluster.Spec{Devices: true, Services: whole, Runtime: devcluster.Runtime(os.Getenv(runtimeVariable))},
		Request: func(spec devcluster.Spec) toolchain.Request {
			return toolchain.Request{Kube: true, Nats: true, Frond: true, Node: spec.Runtime == devcluster.Containerd, DNS: spec.Services}
		},
		Prepare: func(_ context.Context, cluster *devcluster.Cluster) error {
			shared = cluster
			cfg, err := adminConfig()
			if err == nil {
				sharedKube, err = kubernetes.NewForConfig(cfg)
			}
			return err
		},
	}.Run(m))
}

// canRouteServices reports whether the cluster can have Services on gateways: a new one with real containers, by root, with nft.
func canRouteServices() (bool, error) {
	if os.Geteuid() != 0 || os.Getenv("FROND_E2E_DIR") != "" || os.Getenv(runtimeVariable) == string(devcluster.Hollow) {
		return false, nil
	}
	if _, err := toolchain.Ensure(context.Background(), toolchain.Request{Node: true}, os.Stderr); err != nil { //nolint:forbidigo // includes nft
		return false, err
	}
	if _, err := exec.LookPath("nft"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), "root") {
			return false, fmt.Errorf("REQUIRE names root, and Services on gateways need nft: %w", err)
		}
		fmt.Fprintln(os.Stderr, "not tried: Services on gateways, as there is no nft")
		return false, nil
	}
	return true, nil
}

// needContainers skips a test that makes no sense without real containers.
func needContainers(t *testing.T) {
	t.Helper()
	switch {
	case shared.Spec().Runtime == devcluster.Containerd:
	case os.Getenv(runtimeVariable) != "":
		t.Fatalf("needs real containers, and %s asks for none: it is no test for the list HOLLOW in the Makefile", runtimeVariable)
	default:
		t.Skip("needs real containers: run as root")
	}
}

// runKubectl runs the real kubectl and returns its output.
func runKubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := shared.Kubectl(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// applyManifest applies a manifest. When the test ends it deletes the objects and waits until they are gone.
func applyManifest(t *testing.T, manifest string) {
	t.Helper()
	if _, err := shared.Kubectl(t.Context(), manifest, "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitTimeout)
		defer cancel()
		if _, err := shared.Kubectl(ctx, manifest, "delete", "--ignore-not-found", "--timeout=100s", "-f", "-"); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
}

// adminConfig is the configuration of a client of the apiserver.
func adminConfig() (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", shared.Kubeconfig())
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	return cfg, nil
}

// eventually waits until a condition holds; missing describes what is missing, "" when it holds.
func eventually(t *testing.T, what string, missing func(ctx context.Context) string) {
	t.Helper()
	kit.Until(t, what, waitTimeout, 200*time.Millisecond, kit.FromText(missing))
}

// listPods lists pods by label selector.
func listPods(ctx context.Context, selector string) ([]corev1.Pod, error) {
	list, err := sharedKube.CoreV1().Pods(corev1.NamespaceDefault).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// awaitRunning waits for n Ready pods of a selector and returns them.
func awaitRunning(t *testing.T, selector string, n int) []corev1.Pod {
	t.Helper()
	var list []corev1.Pod
	eventually(t, fmt.Sprintf("%d running pods of %s", n, selector), func(ctx context.Context) string {
		var err error
		if list, err = listPods(ctx, selector); err != nil {
			return err.Error()
		}
		ready := 0
		for i := range list {
			if isReady(&list[i]) && list[i].DeletionTimestamp == nil {
				ready++
			}
		}
		if ready != n || len(list) != n {
			return fmt.Sprintf("%d of %d ready\n%s", ready, len(list), describePods(list))
		}
		return ""
	})
	return list
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func describePods(list []corev1.Pod) string {
	var b strings.Builder
	for i := range list {
		p := &list[i]
		fmt.Fprintf(&b, "  %s on %s: %s %s", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Reason)
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Waiting != nil {
				fmt.Fprintf(&b, " [%s: %s %s]", c.Name, c.State.Waiting.Reason, c.State.Waiting.Message)
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// containerRuns maps each container of pods to its id and restarts: it changes when a container was restarted.
func containerRuns(list []corev1.Pod) map[string]string {
	ids := map[string]string{}
	for i := range list {
		for _, c := range list[i].Status.ContainerStatuses {
			ids[list[i].Name+"/"+c.Name] = fmt.Sprintf("%s restarted %d times", c.ContainerID, c.RestartCount)
		}
	}
	return ids
}

// volumeFile reads a file of a pod's volume, through the gateway's mount namespace.
func volumeFile(p *corev1.Pod, plugin, volume, file string) (string, error) {
	root := fmt.Sprintf("/proc/%d/root", shared.PID(p.Spec.NodeName))
	path := filepath.Join(root, shared.Dir(), p.Spec.NodeName, "data", "kubelet", "pods", string(p.UID), "volumes", plugin, volume, file)
	data, err := os.ReadFile(path)
	return string(data), err
}

// storeHolds reports whether a gateway's store holds an object.
func storeHolds(ctx context.Context, edge string, key wire.Key) (bool, error) {
	stored, err := shared.Store(ctx, edge)
	if err != nil {
		return false, err
	}
	for _, o := range stored.Objects {
		if o.Key() == key {
			return true, nil
		}
	}
	return false, nil
}

// awaitGone waits until a gateway's store no longer holds an object.
func awaitGone(t *testing.T, edge string, key wire.Key) {
	t.Helper()
	eventually(t, key.Human()+" leaves "+edge, func(ctx context.Context) string {
		held, err := storeHolds(ctx, edge, key)
		switch {
		case err != nil:
			return err.Error()
		case held:
			return "still there"
		}
		return ""
	})
}

// storedData reads one value of a ConfigMap from a gateway's store.
func storedData(ctx context.Context, edge, name, item string) string {
	raw, err := shared.StoreGet(ctx, edge, wire.Key{Resource: "configmaps", Namespace: "default", Name: name})
	if err != nil {
		return "error: " + err.Error()
	}
	var cm corev1.ConfigMap
	if err := json.Unmarshal(raw, &cm); err != nil {
		return "error: " + err.Error()
	}
	return cm.Data[item]
}
