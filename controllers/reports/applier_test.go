package reports_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/reports"
	"github.com/frond-edge/frond/deploy/rbac"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

func TestApplier_WritesPodStatusAsNode(t *testing.T) {
	w := newApplierEnv(t)
	node, other := w.createNode("a"), w.createNode("b")
	w.createPod("one", node.Name)
	before := time.Now()
	scheduled := fmt.Appendf(nil, `{"status":{"conditions":[{"type":"example.com/gate","status":"True"}]}}`)
	pod, err := w.client.CoreV1().Pods(w.ns).Patch(t.Context(), "one", types.StrategicMergePatchType, scheduled, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	running := w.reportOf(node.Name, wire.Apply, "pods", withStatus(pod, corev1.PodRunning, "first", ready))
	w.handleReport(running)
	got := w.getPod("one")
	if got.Status.Phase != corev1.PodRunning || got.Status.StartTime.UTC().Year() != 2026 || len(got.Status.Conditions) != 2 {
		t.Errorf("status: %+v", got.Status)
	}
	kit.Succeeds(t, 10*time.Second, func() error {
		writes := w.cluster.Audit(t, before, func(r kubetest.AuditEntry) bool {
			return r.Object.Name == "one" && r.Object.Subresource == "status" && r.Impersonated.Username != "" && r.Response.Code != 409
		})
		if len(writes) != 1 || writes[0].Impersonated.Username != "system:node:"+node.Name || writes[0].Response.Code != 200 {
			return fmt.Errorf("writes: %+v", writes)
		}
		return nil
	})
	kit.Succeeds(t, 10*time.Second, func() error { // until the cache has seen the write
		was := w.counterValue("dropped_total", "pods", "unchanged")
		w.handleReport(running)
		if w.counterValue("dropped_total", "pods", "unchanged") == was {
			return errors.New("the same report again is a write")
		}
		return nil
	})

	foreign := running
	foreign.Node = other.Name
	w.wantDropped(foreign, "foreign")
	old := running
	old.UID = "11111111-2222-3333-4444-555555555555"
	w.wantDropped(old, "uid")
	missing := w.reportOf(node.Name, wire.Apply, "pods", withStatus(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "missing", UID: "1"},
	}, corev1.PodRunning, "x"))
	w.wantDropped(missing, "gone")
	w.handleReport(w.reportOf(node.Name, wire.Apply, "pods", withStatus(pod, corev1.PodFailed, "end")))
	w.handleReport(w.reportOf(node.Name, wire.Apply, "pods", withStatus(pod, corev1.PodRunning, "zombie")))
	if got := w.getPod("one"); got.Status.Phase != corev1.PodFailed {
		t.Errorf("a pod that has ended is %s again", got.Status.Phase)
	}
}

func TestApplier_OldReportNeverReplacesNewer(t *testing.T) {
	w := newApplierEnv(t)
	node := w.createNode("a")
	pod := w.createPod("one", node.Name)
	old := w.reportOf(node.Name, wire.Apply, "pods", withStatus(pod, corev1.PodRunning, "old"))
	newer := w.reportOf(node.Name, wire.Apply, "pods", withStatus(pod, corev1.PodRunning, "newer"))
	old.Order, newer.Order = 1, 2
	arrived := false
	w.replaced = func(m wire.Message) bool {
		if m.Order == 2 || arrived {
			return m.Order == 1
		}
		// The answer "still latest" is in transit when the newer report arrives and is applied by another replica.
		arrived = true
		w.mu.Unlock()
		defer w.mu.Lock()
		w.handleReport(newer)
		return false
	}
	w.wantDropped(old, "replaced")
	if got := w.getPod("one").Status.Message; got != "newer" {
		t.Errorf("status is of the %s report", got)
	}
}

// The newer report contains what Kubernetes held before the older one was written, so it appears to be known and writes nothing.
func TestApplier_OvertakenWriteRequestsReport(t *testing.T) {
	w := newApplierEnv(t)
	node := w.createNode("a")
	pod := w.createPod("one", node.Name)
	w.handleReport(w.reportOf(node.Name, wire.Apply, "pods", withStatus(pod, corev1.PodRunning, "as before")))
	kit.Succeeds(t, 10*time.Second, func() error {
		var seen corev1.Pod
		if err := w.cached.Get(t.Context(), client.ObjectKeyFromObject(pod), &seen); err != nil || seen.Status.Message != "as before" {
			return fmt.Errorf("the cache holds %q, %v", seen.Status.Message, err) //nolint:errorlint // err may be nil
		}
		return nil
	})
	old := w.reportOf(node.Name, wire.Apply, "pods", withStatus(pod, corev1.PodRunning, "for a moment"))
	newer := w.reportOf(node.Name, wire.Apply, "pods", withStatus(pod, corev1.PodRunning, "as before"))
	old.Order, newer.Order = 1, 2
	arrived := false
	w.replaced = func(m wire.Message) bool {
		if m.Order == 2 || arrived {
			return m.Order == 1
		}
		arrived = true
		w.mu.Unlock()
		defer w.mu.Lock()
		w.handleReport(newer)
		return false
	}
	w.handleReport(old)
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.overtaken) != 1 || w.overtaken[0] != old.Key {
		t.Errorf("asked to report again: %v, want %v once", w.overtaken, old.Key)
	}
}

func TestApplier_EndsDeletedPod(t *testing.T) {
	w := newApplierEnv(t)
	node := w.createNode("a")
	pod := w.createPod("one", node.Name)
	end := w.reportOf(node.Name, wire.Delete, "pods", pod)
	w.wantDropped(end, "running")
	w.getPod("one")

	finalized := fmt.Appendf(nil, `{"metadata":{"finalizers":["example.com/test"]}}`)
	if _, err := w.client.CoreV1().Pods(w.ns).Patch(t.Context(), "one", types.MergePatchType, finalized, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.client.CoreV1().Pods(w.ns).Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	wrong := end
	wrong.UID = "other"
	w.wantDropped(wrong, "uid")
	last := w.reportOf(node.Name, wire.Apply, "pods", withStatus(pod, corev1.PodSucceeded, "exit"))
	end.Object = last.Object
	w.handleReport(end)
	if got := w.getPod("one"); got.Status.Phase != corev1.PodSucceeded || *got.DeletionGracePeriodSeconds != 0 {
		t.Errorf("phase %s, grace %d", got.Status.Phase, *got.DeletionGracePeriodSeconds)
	}
	free := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := w.client.CoreV1().Pods(w.ns).Patch(t.Context(), "one", types.MergePatchType, free, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.wantDropped(withoutStatus(end), "gone")
}

// withoutStatus returns the end of a pod without its last state.
func withoutStatus(m wire.Message) wire.Message {
	m.Object = nil
	return m
}

func TestApplier_RegistersNode(t *testing.T) {
	w := newApplierEnv(t)
	name := w.ns + "-new"
	w.removeNode(name)
	reported := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, names.LabelEdge: "", "example.com/site": "7",
			"node-restriction.kubernetes.io/secret": "1",
		}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}, {Type: corev1.NodeInternalIP, Address: "fd00::1"}},
			Conditions: []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Unix(1700000000, 0),
			}},
		},
	}
	seen, err := w.client.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	defer seen.Stop()
	w.handleReport(w.reportOf(name, wire.Apply, "nodes", reported))
	got, err := w.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, restricted := got.Labels["node-restriction.kubernetes.io/secret"]; restricted || got.Labels["example.com/site"] != "7" || got.Labels[corev1.LabelHostname] != name {
		t.Errorf("labels %v", got.Labels)
	}
	first, ok := (<-seen.ResultChan()).Object.(*corev1.Node) // a scheduler that watches sees no other
	if !ok {
		t.Fatal("the watch ended")
	}
	for _, label := range []string{names.LabelEdge, names.LabelAgent} {
		if _, labelled := first.Labels[label]; !labelled {
			t.Errorf("first seen with labels %v, without %s", first.Labels, label)
		}
	}
	cloud := []byte(`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False"},{"type":"EdgeConnected","status":"True"},{"type":"EdgeUpToDate","status":"True"}]}}`)
	if _, err := w.client.CoreV1().Nodes().Patch(t.Context(), name, types.StrategicMergePatchType, cloud, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	next := got.DeepCopy()
	next.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}, {Type: corev1.NodeInternalIP, Address: "fd00::2"}}
	next.Status.Conditions = append(next.Status.Conditions, corev1.NodeCondition{Type: "EdgeConnected", Status: corev1.ConditionFalse},
		corev1.NodeCondition{Type: "EdgeUpToDate", Status: corev1.ConditionFalse})
	next.Labels = map[string]string{corev1.LabelHostname: name, "example.com/site": "8", corev1.LabelTopologyZone: "z", corev1.LabelInstanceTypeStable: "m"}
	w.handleReport(w.reportOf(name, wire.Apply, "nodes", next))
	got, err = w.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	conditions := map[corev1.NodeConditionType]corev1.NodeCondition{}
	for _, c := range got.Status.Conditions {
		conditions[c.Type] = c
	}
	if a := got.Status.Addresses; len(a) != 4 || a[1].Address != "fd00::2" || a[2] != (corev1.NodeAddress{Type: corev1.NodeHostName, Address: name}) {
		t.Errorf("addresses %v", got.Status.Addresses)
	}
	if conditions["EdgeConnected"].Status != corev1.ConditionTrue || conditions["EdgeUpToDate"].Status != corev1.ConditionTrue || len(conditions) != 4 || conditions[corev1.NodeReady].LastHeartbeatTime.Unix() != 1700000000 {
		t.Errorf("conditions %v", conditions)
	}
	// A gateway that could move itself into another zone or site would get what is meant for that.
	if _, zoned := got.Labels[corev1.LabelTopologyZone]; zoned || got.Labels["example.com/site"] != "7" || got.Labels[corev1.LabelInstanceTypeStable] != "m" {
		t.Errorf("labels %v", got.Labels)
	}
	foreign := w.reportOf(name, wire.Apply, "nodes", got)
	foreign.Node = "somebody"
	w.wantDropped(foreign, "foreign")
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.wantDropped(w.reportOf(name, wire.Apply, "nodes", withKernelVersion(got)), "gone")
}

func withKernelVersion(node *corev1.Node) *corev1.Node {
	node = node.DeepCopy()
	node.Status.NodeInfo.KernelVersion = "late"
	return node
}

func TestApplier_CreatesMirrorPod(t *testing.T) {
	w := newApplierEnv(t)
	node := w.createNode("a")
	yes := true
	mirror := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.ns, Name: "static-" + node.Name, Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &yes}},
		},
		Spec: corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	w.handleReport(w.reportOf(node.Name, wire.Apply, "pods", mirror))
	got := w.getPod(mirror.Name)
	w.handleReport(w.reportOf(node.Name, wire.Apply, "pods", withStatus(got, corev1.PodRunning, "static")))
	w.handleReport(w.reportOf(node.Name, wire.Delete, "pods", got))
	if _, err := w.client.CoreV1().Pods(w.ns).Get(t.Context(), got.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("mirror pod after its end: %v", err)
	}
}

// TestApplier_LeavesProtectedNamespacesAlone: no mirror pod and no event of a node is created in a protected namespace.
func TestApplier_LeavesProtectedNamespacesAlone(t *testing.T) {
	w := newApplierEnv(t)
	node := w.createNode("a")
	w.metrics = prometheus.NewRegistry()
	w.applier = w.newApplier(reports.Config{Metrics: w.metrics, Protected: controllers.ProtectNamespaces(w.ns)}, w.user,
		func(context.Context, wire.Message) (bool, error) { return true, nil })
	yes := true
	mirror := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.ns, Name: "static-" + node.Name, Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &yes}},
		},
		Spec: corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	w.wantDropped(w.reportOf(node.Name, wire.Apply, "pods", mirror), "protected")
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "one.1"}, Source: corev1.EventSource{Host: node.Name},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: w.ns, Name: mirror.Name},
	}
	w.wantDropped(w.reportOf(node.Name, wire.Apply, "events", event), "protected")
	pods, err := w.client.CoreV1().Pods(w.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("pods %v, %v", pods, err)
	}
}

func TestApplier_CreatesAndCountsEvents(t *testing.T) {
	w := newApplierEnv(t)
	node, other := w.createNode("a"), w.createNode("b")
	pod := w.createPod("one", node.Name)
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: w.ns, Name: "one.1"},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: w.ns, Name: pod.Name, UID: pod.UID},
		Reason:         "BackOff", Message: "first", Source: corev1.EventSource{Component: "kubelet", Host: node.Name},
		Count: 1, FirstTimestamp: metav1.Unix(1700000000, 0), LastTimestamp: metav1.Unix(1700000000, 0), Type: corev1.EventTypeWarning,
	}
	first := w.reportOf(node.Name, wire.Apply, "events", event)
	w.handleReport(first)
	event.Count, event.Message, event.LastTimestamp = 5, "fifth", metav1.Unix(1700000100, 0)
	w.handleReport(w.reportOf(node.Name, wire.Apply, "events", event))
	w.wantDropped(first, "unchanged")
	got, err := w.client.CoreV1().Events(w.ns).Get(t.Context(), "one.1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Count != 5 || got.Message != "fifth" || got.FirstTimestamp.Unix() != 1700000000 || got.LastTimestamp.Unix() != 1700000100 {
		t.Errorf("event: %+v", got)
	}
	event.Source.Host = other.Name
	w.wantDropped(w.reportOf(node.Name, wire.Apply, "events", event), "foreign")
	event.Source.Host, event.InvolvedObject.Kind, event.InvolvedObject.Name = "", "Node", other.Name
	w.wantDropped(w.reportOf(node.Name, wire.Apply, "events", event), "foreign")
	event.Namespace, event.InvolvedObject.Namespace, event.InvolvedObject.Kind = "nowhere", "nowhere", "Pod"
	w.wantDropped(w.reportOf(node.Name, wire.Apply, "events", event), "terminating")
}

func TestApplier_MalformedReportIsPermanent(t *testing.T) {
	w := newApplierEnv(t)
	node := w.createNode("a")
	pod := w.createPod("one", node.Name)
	good := w.reportOf(node.Name, wire.Apply, "pods", pod)
	for name, change := range map[string]func(*wire.Message){
		"not JSON":          func(m *wire.Message) { m.Object = []byte("{") },
		"null":              func(m *wire.Message) { m.Object = []byte("null") },
		"other object":      func(m *wire.Message) { m.Key.Name = "two" },
		"unknown operation": func(m *wire.Message) { m.Op = "explode" },
		"unknown resource":  func(m *wire.Message) { m.Key.Resource = "secrets" },
		"end without UID":   func(m *wire.Message) { m.Op, m.UID = wire.Delete, "" },
		"invalid status": func(m *wire.Message) {
			m.Object = []byte(strings.Replace(string(m.Object), `"status":{`, `"status":{"podIPs":[{"ip":"not an ip"}],"podIP":"not an ip",`, 1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := good
			change(&m)
			if err := w.applier.Handle(t.Context(), m); !errors.Is(err, wire.ErrPermanent) {
				t.Errorf("error %v, want permanent", err)
			}
		})
	}
}

// The rights that an administrator of Kubernetes before 1.36 applies are enough to act as a node, and not to act as a
// group of administrators.
func TestImpersonating_ClassicRightsActAsNodes(t *testing.T) {
	w := newApplierEnv(t)
	var role rbacv1.ClusterRole
	first, _, _ := strings.Cut(rbac.ClassicImpersonation(), "\n---\n")
	if err := yaml.Unmarshal([]byte(first), &role); err != nil {
		t.Fatal(err)
	}
	limited := w.cluster.ConfigWithRules(t, "frond-classic-test", role.Rules)
	client, err := kubernetes.NewForConfig(reports.Impersonating(limited, true))
	if err != nil {
		t.Fatal(err)
	}
	node := w.createNode("classic")
	w.createPod("one", node.Name)
	patch := func(node string) error {
		_, err := client.CoreV1().Pods(w.ns).Patch(reports.WithNode(t.Context(), node), "one", types.MergePatchType, []byte(`{"status":{"message":"x"}}`), metav1.PatchOptions{}, "status")
		return err
	}
	if err := patch(node.Name); err != nil {
		t.Errorf("its own pod: %v", err)
	}
	if err := patch(w.ns + "-other"); !apierrors.IsForbidden(err) {
		t.Errorf("another node's pod: %v", err)
	}
	config := rest.CopyConfig(limited)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:x", Groups: []string{"system:masters"}}
	if client, err = kubernetes.NewForConfig(config); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("as an administrator: %v", err)
	}
}

func TestRules_AllowNodesOnly(t *testing.T) {
	w := newApplierEnv(t)
	plain := reports.Impersonating(w.user, false)
	client, err := kubernetes.NewForConfig(plain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a request without a node was sent")
	}
	node := w.createNode("a")
	w.createPod("one", node.Name)
	ctx := reports.WithNode(t.Context(), w.ns+"-other")
	_, err = client.CoreV1().Pods(w.ns).Patch(ctx, "one", types.MergePatchType, []byte(`{"status":{"message":"x"}}`), metav1.PatchOptions{}, "status")
	if !apierrors.IsForbidden(err) {
		t.Errorf("another node's pod: %v", err)
	}
	for _, who := range []rest.ImpersonationConfig{
		{UserName: "kubernetes-admin", Groups: []string{"system:masters"}},
		{UserName: "system:node:x", Groups: []string{"system:masters"}},
		{UserName: "system:kube-controller-manager"},
		{UserName: "system:serviceaccount:kube-system:default"},
	} {
		config := rest.CopyConfig(w.user)
		config.Impersonate = who
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("as %v: %v", who, err)
		}
	}
	own, err := kubernetes.NewForConfig(w.user)
	if err != nil {
		t.Fatal(err)
	}
	if err := own.CoreV1().Pods(w.ns).Delete(context.WithoutCancel(t.Context()), "one", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("own rights: %v", err)
	}
}

func TestCallRules_AuthorizedAsNode(t *testing.T) {
	w := newApplierEnv(t)
	node := w.createNode("a")
	for _, name := range []string{"used", "unused"} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := w.client.CoreV1().ConfigMaps(w.ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.createPod("one", node.Name)
	off := false
	_, err := w.client.CoreV1().Pods(w.ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "two"},
		Spec: corev1.PodSpec{
			NodeName: node.Name, AutomountServiceAccountToken: &off,
			Volumes: []corev1.Volume{{Name: "token", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				Sources: []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
			}}}},
			Containers: []corev1.Container{{Name: "c", Image: "i", EnvFrom: []corev1.EnvFromSource{{
				ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "used"}},
			}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(reports.Impersonating(w.cluster.ConfigWithRules(t, "frond-calls-test", reports.CallRules()), false))
	if err != nil {
		t.Fatal(err)
	}
	ctx := reports.WithNode(t.Context(), node.Name)
	kit.Succeeds(t, 10*time.Second, func() error { // the authorizers read from caches
		_, err := client.CoreV1().ConfigMaps(w.ns).Get(ctx, "used", metav1.GetOptions{})
		return err
	})
	if _, err := client.CoreV1().ConfigMaps(w.ns).Get(ctx, "unused", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a config map that no pod of the node uses: %v", err)
	}
	token, err := client.CoreV1().ServiceAccounts(w.ns).CreateToken(ctx, "default", &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{
			Kind: "Pod", APIVersion: "v1", Name: "two", UID: w.getPod("two").UID,
		}},
	}, metav1.CreateOptions{})
	if err != nil || token.Status.Token == "" {
		t.Errorf("token for a pod of the node: %v", err)
	}
	if _, err := client.Discovery().ServerVersion(); err == nil {
		t.Error("discovery has no node in its context and was sent")
	}
	if raw, err := client.CoreV1().RESTClient().Get().AbsPath("/version").DoRaw(ctx); err != nil {
		t.Errorf("version as the node: %v %s", err, raw)
	}
}
