package evictions_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/evictions"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// evictorEnv is a namespace that is protected, one that is not, and an evictor that owns the nodes whose names end with "-owned".
type evictorEnv struct {
	*testing.T
	client           kubernetes.Interface
	protected, other string

	mu     sync.Mutex
	warned []string // guarded by mu
}

func newEvictorEnv(t *testing.T) *evictorEnv {
	t.Helper()
	cluster := shared.Cluster(t)
	w := &evictorEnv{T: t, client: cluster.Client(t), protected: cluster.Namespace(t), other: cluster.Namespace(t)}
	objects, err := podcache.New(cluster.ConfigWithRules(t, "frond-evictions-test", evictions.Rules()))
	if err != nil {
		t.Fatal(err)
	}
	remove := func(ctx context.Context, pod *corev1.Pod) error {
		options := metav1.NewDeleteOptions(0)
		options.Preconditions = metav1.NewUIDPreconditions(string(pod.UID))
		return w.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *options)
	}
	owns := func(node string) bool { return strings.HasSuffix(node, "-owned") }
	warn := func(node, reason, message string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.warned = append(w.warned, node+" "+reason+" "+message)
	}
	evictor := evictions.New(controllers.ProtectNamespaces(w.protected), objects, owns, remove, warn, nil, zaptest.NewLogger(t))
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var g errgroup.Group
	g.Go(func() error { return objects.Start(ctx) })
	g.Go(func() error { return evictor.Start(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("evictor: %v", err)
		}
	})
	return w
}

func (w *evictorEnv) createNode(name string, labels map[string]string) string {
	w.Helper()
	name = w.other + "-" + name
	if _, err := w.client.CoreV1().Nodes().Create(w.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.client.CoreV1().Nodes().Delete(context.WithoutCancel(w.Context()), name, metav1.DeleteOptions{})
	})
	return name
}

func (w *evictorEnv) createPod(namespace, name, node string) {
	w.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := w.client.CoreV1().ServiceAccounts(namespace).Create(w.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		w.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if _, err := w.client.CoreV1().Pods(namespace).Create(w.Context(), pod, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// TestEvictor_DeletesProtectedPodsFromGateways: pods of a protected namespace are deleted from this replica's gateways,
// also from one that becomes a gateway later, and no other pods.
func TestEvictor_DeletesProtectedPodsFromGateways(t *testing.T) {
	w := newEvictorEnv(t)
	edge := map[string]string{names.LabelEdge: ""}
	gateway, foreign, server := w.createNode("gw-owned", edge), w.createNode("gw", edge), w.createNode("server-owned", nil)
	w.createPod(w.protected, "evicted", gateway)
	w.createPod(w.protected, "of-another-replica", foreign)
	w.createPod(w.protected, "in-the-cloud", server)
	w.createPod(w.protected, "unbound", "")
	w.createPod(w.other, "not-protected", gateway)
	kit.Succeeds(t, 20*time.Second, func() error {
		_, err := w.client.CoreV1().Pods(w.protected).Get(t.Context(), "evicted", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the pod is there"), err)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.warned) != 1 || !strings.HasPrefix(w.warned[0], gateway+" ProtectedPodEvicted Pod "+w.protected+"/evicted ") {
			return errors.New("warned " + strings.Join(w.warned, "; "))
		}
		return nil
	})
	for namespace, names := range map[string][]string{w.protected: {"of-another-replica", "in-the-cloud", "unbound"}, w.other: {"not-protected"}} {
		for _, name := range names {
			if pod, err := w.client.CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil || pod.DeletionTimestamp != nil {
				t.Errorf("pod %s: %v", name, err)
			}
		}
	}
	late := []byte(`{"metadata":{"labels":{"` + names.LabelEdge + `":""}}}`)
	if _, err := w.client.CoreV1().Nodes().Patch(t.Context(), server, "application/merge-patch+json", late, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, 30*time.Second, func() error {
		_, err := w.client.CoreV1().Pods(w.protected).Get(t.Context(), "in-the-cloud", metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the pod is there"), err)
		}
		return nil
	})
}

// TestEvictor_LimitsTheRateOfANode: if a controller keeps creating pods on one gateway, deletions stay few, and other
// gateways are served.
func TestEvictor_LimitsTheRateOfANode(t *testing.T) {
	w := newEvictorEnv(t)
	edge := map[string]string{names.LabelEdge: ""}
	busy, quiet := w.createNode("busy-owned", edge), w.createNode("quiet-owned", edge)
	const pods, burst = 7, 5
	for i := range pods {
		w.createPod(w.protected, fmt.Sprintf("pod-%d", i), busy)
	}
	left := func() int {
		list, err := w.client.CoreV1().Pods(w.protected).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return len(list.Items)
	}
	kit.Succeeds(t, 20*time.Second, func() error {
		if n := left(); n != pods-burst {
			return fmt.Errorf("%d pods are left, want %d", n, pods-burst)
		}
		return nil
	})
	w.createPod(w.protected, "elsewhere", quiet)
	kit.Succeeds(t, 20*time.Second, func() error {
		if _, err := w.client.CoreV1().Pods(w.protected).Get(t.Context(), "elsewhere", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("the pod of another gateway is there"), err)
		}
		return nil
	})
	if n := left(); n != pods-burst {
		t.Errorf("%d pods are left after the burst, want %d", n, pods-burst)
	}
}
