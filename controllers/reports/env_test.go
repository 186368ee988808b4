package reports_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/controllers/reports"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// applierEnv is a cluster, a namespace and an applier with exactly the rights of reports.Rules.
type applierEnv struct {
	*testing.T
	cluster *kubetest.Cluster
	client  kubernetes.Interface
	ns      string
	user    *rest.Config
	metrics *prometheus.Registry
	applier *reports.Applier
	cached  client.Reader

	mu sync.Mutex
	// replaced says that a newer report is in the stream; guarded by mu.
	replaced  func(wire.Message) bool
	overtaken []wire.Key // guarded by mu
	latestErr error      // guarded by mu; the error that "still latest" returns instead
}

func newApplierEnv(t *testing.T) *applierEnv {
	t.Helper()
	w := &applierEnv{T: t, cluster: shared.Cluster(t), metrics: prometheus.NewRegistry()}
	w.client, w.ns = w.cluster.Client(t), w.cluster.Namespace(t)
	w.user = w.limitedConfig()
	objects, err := podcache.New(w.user)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1) // the one result
	go func() { done <- objects.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("cache: %v", err)
		}
	})
	for _, o := range []interface {
		metav1.Object
		runtime.Object
	}{&corev1.Pod{}, &corev1.Node{}} {
		if _, err := objects.GetInformer(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if !objects.WaitForCacheSync(t.Context()) {
		t.Fatal("cache not filled")
	}
	w.cached = objects
	stillLast := func(_ context.Context, m wire.Message) (bool, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.latestErr != nil {
			return false, w.latestErr
		}
		return w.replaced == nil || !w.replaced(m), nil
	}
	overtaken := func(m wire.Message) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.overtaken = append(w.overtaken, m.Key)
	}
	w.applier = w.newApplier(reports.Config{Metrics: w.metrics, OnOvertaken: overtaken}, w.user, stillLast)
	return w
}

// newApplier creates an Applier with the rights of a user.
func (w *applierEnv) newApplier(cfg reports.Config, user *rest.Config, stillLast reports.LatestCheck) *reports.Applier {
	w.Helper()
	own, err := kubernetes.NewForConfig(user)
	if err != nil {
		w.Fatal(err)
	}
	node, err := kubernetes.NewForConfig(reports.Impersonating(user, false))
	if err != nil {
		w.Fatal(err)
	}
	return reports.New(cfg, own, node, w.cached, stillLast, zaptest.NewLogger(w))
}

// limitedConfig creates a user with exactly the rights of Rules.
func (w *applierEnv) limitedConfig() *rest.Config {
	w.Helper()
	config := w.cluster.ConfigWithRules(w, "frond-reports-test", reports.Rules())
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.Fatal(err)
	}
	kit.Succeeds(w, 10*time.Second, func() error { // the authorizer reads roles from a cache
		_, err := client.CoreV1().Nodes().List(w.Context(), metav1.ListOptions{Limit: 1})
		return err
	})
	return config
}

// createNode creates a Node and deletes it with the test.
func (w *applierEnv) createNode(suffix string) *corev1.Node {
	w.Helper()
	node, err := w.client.CoreV1().Nodes().Create(w.Context(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-" + suffix}}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	w.removeNode(node.Name)
	return node
}

func (w *applierEnv) removeNode(name string) {
	w.Cleanup(func() {
		_ = w.client.CoreV1().Nodes().Delete(context.WithoutCancel(w.Context()), name, metav1.DeleteOptions{})
	})
}

func (w *applierEnv) createPod(name, node string) *corev1.Pod {
	w.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	if _, err := w.client.CoreV1().ServiceAccounts(w.ns).Create(w.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		w.Fatal(err)
	}
	off := false
	pod, err := w.client.CoreV1().Pods(w.ns).Create(w.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: node, AutomountServiceAccountToken: &off, Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return pod
}

func (w *applierEnv) getPod(name string) *corev1.Pod {
	w.Helper()
	pod, err := w.client.CoreV1().Pods(w.ns).Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return pod
}

// reportOf returns the report of an object as a node would make it.
func (w *applierEnv) reportOf(node string, op wire.Operation, resource string, o interface {
	metav1.Object
	runtime.Object
},
) wire.Message {
	w.Helper()
	m := wire.Message{
		Node: node, Op: op, UID: string(o.GetUID()), Time: time.Now(),
		Key: wire.Key{Resource: resource, Namespace: o.GetNamespace(), Name: o.GetName()},
	}
	if op == wire.Apply {
		data, err := json.Marshal(o)
		if err != nil {
			w.Fatal(err)
		}
		m.Object = data
	}
	return m
}

func (w *applierEnv) handleReport(m wire.Message) {
	w.Helper()
	if err := w.applier.Handle(w.Context(), m); err != nil {
		w.Fatalf("handle: %v", err)
	}
}

// counterValue reads a counter, by the values of its labels.
func (w *applierEnv) counterValue(name, resource, what string) int {
	w.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "frond_reports_"+name {
			continue
		}
		for _, metric := range family.GetMetric() {
			if hasLabel(metric, resource) && hasLabel(metric, what) {
				return int(metric.GetCounter().GetValue())
			}
		}
	}
	return 0
}

func hasLabel(metric *dto.Metric, value string) bool {
	for _, label := range metric.GetLabel() {
		if label.GetValue() == value {
			return true
		}
	}
	return false
}

func (w *applierEnv) wantDropped(m wire.Message, reason string) {
	w.Helper()
	before := w.counterValue("dropped_total", m.Key.Resource, reason)
	w.handleReport(m)
	if n := w.counterValue("dropped_total", m.Key.Resource, reason) - before; n != 1 {
		w.Errorf("%s: dropped %d reports as %q, want 1", m.Key.Human(), n, reason)
	}
}

func withStatus(pod *corev1.Pod, phase corev1.PodPhase, marker string, conditions ...corev1.PodCondition) *corev1.Pod {
	pod = pod.DeepCopy()
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	pod.Status.Phase, pod.Status.StartTime, pod.Status.Message = phase, &at, marker
	pod.Status.Conditions = conditions
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "c", Image: "i", ImageID: "sha256:1", ContainerID: fmt.Sprint("containerd://", marker),
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}},
	}}
	return pod
}
