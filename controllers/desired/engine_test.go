package desired_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

func isApplied(m wire.Message) bool { return m.Op == wire.Apply }
func isDeleted(m wire.Message) bool { return m.Op == wire.Delete }

func TestEngine_PublishesReferencesOfPods(t *testing.T) {
	w := newEngineEnv(t)
	node := w.createNode("a")
	w.createSecret("pull")
	w.createAccount("default", "pull")
	w.createConfigMap("used", "1")
	w.createConfigMap("unused", "1")
	w.createSecret("shared")
	w.createSecret("volume")
	w.createSecret("unused")
	w.createVolume("data", "volume")
	engine := w.startEngine(desired.Config{TombstoneAge: time.Second}, &fakeOwnership{}, "desired")

	w.createPod("one", node, mountConfigMap("used"), mountSecret("shared"),
		corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}})
	w.createPod("two", node, mountSecret("shared"))
	base := []string{"pods two", "secrets shared", "serviceaccounts default", "secrets pull"}
	full := append([]string{
		"pods one", "configmaps used", "persistentvolumeclaims data", "persistentvolumes " + w.ns, "secrets volume",
	}, base...)
	w.eventuallyHasObjects(node, full...)

	w.deletePod("one")
	w.eventuallyHasObjects(node, base...)
	tomb := w.eventuallyMessage(node, coreKey("secrets", w.ns, "volume"), "tombstone", isDeleted)
	if tomb.UID == "" {
		t.Error("tombstone without a UID")
	}
	w.eventuallyMessage(node, coreKey("secrets", w.ns, "volume"), "purged", func(m wire.Message) bool {
		engine.RecordAck(node, tomb.Sequence+100) // repeatedly, as heartbeats do
		return m.Sequence == 0
	})

	w.deletePod("two")
	w.eventuallyHasObjects(node)
}

// createVolume creates a bound pair of claim and volume; the volume's name is that of the namespace.
func (w *engineEnv) createVolume(claim, secret string) {
	w.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	_, err := w.client.CoreV1().PersistentVolumes().Create(w.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: w.ns},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef: &corev1.ObjectReference{Namespace: w.ns, Name: claim},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "test.example.com", VolumeHandle: "1",
				NodeStageSecretRef: &corev1.SecretReference{Namespace: w.ns, Name: secret},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		_ = w.client.CoreV1().PersistentVolumes().Delete(context.WithoutCancel(w.Context()), w.ns, metav1.DeleteOptions{})
	})
	pvc, err := w.client.CoreV1().PersistentVolumeClaims(w.ns).Create(w.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claim},
		Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: w.ns, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	pvc.Status.Phase = corev1.ClaimBound
	if _, err := w.client.CoreV1().PersistentVolumeClaims(w.ns).UpdateStatus(w.Context(), pvc, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
}

func TestEngine_PublishesRecreatedObject(t *testing.T) {
	w := newEngineEnv(t)
	node := w.createNode("a")
	w.createAccount("default")
	w.startEngine(desired.Config{}, &fakeOwnership{}, "desired")
	w.createPod("one", node, mountConfigMap("cm"))
	k := coreKey("configmaps", w.ns, "cm")
	for i := range 20 {
		cm := w.createConfigMap("cm", fmt.Sprint(i))
		w.eventuallyMessage(node, k, "new UID", func(m wire.Message) bool { return isApplied(m) && m.UID == string(cm.UID) })
		if err := w.client.CoreV1().ConfigMaps(w.ns).Delete(t.Context(), "cm", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 { // every other time faster than the tombstone
			w.eventuallyMessage(node, k, "tombstone", func(m wire.Message) bool { return isDeleted(m) && m.UID == string(cm.UID) })
		}
	}
}

func TestEngine_PublishesAgainAfterPurge(t *testing.T) {
	w := newEngineEnv(t)
	node := w.createNode("a")
	w.createAccount("default")
	w.createSecret("s")
	engine := w.startEngine(desired.Config{TombstoneAge: time.Second}, &fakeOwnership{}, "desired")
	k := coreKey("secrets", w.ns, "s")
	for i := range 3 {
		w.createPod("one", node, mountSecret("s"))
		w.eventuallyMessage(node, k, fmt.Sprint("arrives, round ", i), isApplied)
		w.deletePod("one")
		tomb := w.eventuallyMessage(node, k, "leaves", isDeleted)
		w.eventuallyMessage(node, k, "is purged", func(m wire.Message) bool {
			engine.RecordAck(node, tomb.Sequence) // repeatedly: the first may arrive before the engine has recorded the tombstone
			return m.Sequence == 0
		})
	}
}

func TestEngine_PublishesRecreatedPod(t *testing.T) {
	w := newEngineEnv(t)
	node := w.createNode("a")
	w.createAccount("default")
	w.startEngine(desired.Config{}, &fakeOwnership{}, "desired")
	first := w.createPod("web-0", node)
	k := coreKey("pods", w.ns, "web-0")
	w.eventuallyMessage(node, k, "first", func(m wire.Message) bool { return m.UID == string(first.UID) })
	if err := w.client.CoreV1().Pods(w.ns).Delete(t.Context(), "web-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, 10*time.Second, func() error {
		var pod corev1.Pod
		w.decodeObject(node, k, &pod)
		if pod.DeletionTimestamp == nil {
			return fmt.Errorf("no deletion timestamp at version %s", pod.ResourceVersion)
		}
		return nil
	})
	w.deletePod("web-0")
	second := w.createPod("web-0", node)
	w.eventuallyMessage(node, k, "second", func(m wire.Message) bool { return isApplied(m) && m.UID == string(second.UID) })

	w.deletePod("web-0")
	other := w.createNode("b")
	w.createPod("web-0", other)
	w.eventuallyMessage(node, k, "gone from its old node", isDeleted)
	w.eventuallyMessage(other, k, "on its new node", isApplied)
}

func TestEngine_IgnoresKubeletStatusChanges(t *testing.T) {
	w := newEngineEnv(t)
	node := w.createNode("a")
	w.createAccount("default")
	w.startEngine(desired.Config{}, &fakeOwnership{}, "desired")
	w.createPod("one", node)
	k := coreKey("pods", w.ns, "one")
	before := w.eventuallyMessage(node, k, "pod", isApplied)
	status := func(patch string) {
		t.Helper()
		_, err := w.client.CoreV1().Pods(w.ns).Patch(t.Context(), "one", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
	}
	status(`{"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}]}}`)
	status(`{"status":{"conditions":[{"type":"example.com/gate","status":"True"}]}}`)
	after := w.eventuallyMessage(node, k, "gate", func(m wire.Message) bool { return m.Digest != before.Digest })
	var pod corev1.Pod
	w.decodeObject(node, k, &pod)
	if pod.Status.PodIP != "10.0.0.1" || len(pod.ManagedFields) != 0 || pod.Kind != "Pod" || pod.ResourceVersion != after.Version {
		t.Errorf("object: %+v", pod)
	}
	if n := w.publishCount(node, k); n != 2 {
		t.Errorf("%d messages of the pod were published, want 2", n)
	}
}

func TestEngine_AdmitsNodeWithoutNodeObject(t *testing.T) {
	w := newEngineEnv(t)
	engine := w.startEngine(desired.Config{Grace: time.Hour}, &fakeOwnership{}, "desired")
	name := w.ns + "-new"
	engine.AdmitNode(name)
	w.eventuallyMessage(name, wire.SnapshotMarker(), "marker", isApplied)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} // no edge label yet
	if _, err := w.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallyMessage(name, coreKey("nodes", "", name), "Node", isApplied)
	w.createAccount("default")
	w.createPod("one", name)
	w.eventuallyMessage(name, coreKey("pods", w.ns, "one"), "pod", isApplied)
	w.deletePod("one")
	w.eventuallyMessage(name, coreKey("pods", w.ns, "one"), "pod's tombstone", isDeleted)
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestEngine_ServesOnlyEdgeNodes(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	plain := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-plain"}}
	if _, err := w.client.CoreV1().Nodes().Create(t.Context(), plain, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.createPod("early", plain.Name)
	w.startEngine(desired.Config{}, &fakeOwnership{}, "desired")
	edge := w.createNode("edge")
	w.createPod("witness", edge)
	w.eventuallyHasObjects(edge, "pods witness", "serviceaccounts default")
	if held := w.heldMessages(plain.Name); len(held) != 0 {
		t.Fatalf("a node of the cloud got %v", held)
	}
	label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, names.LabelEdge)
	if _, err := w.client.CoreV1().Nodes().Patch(t.Context(), plain.Name, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallyHasObjects(plain.Name, "pods early", "serviceaccounts default")
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), plain.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestEngine_KeepsObjectsDuringGrace(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	engine := w.startEngine(desired.Config{Grace: 2 * time.Second, NoServices: true}, &fakeOwnership{}, "desired")
	node := w.createNode("a")
	w.createPod("one", node)
	w.eventuallyHasObjects(node, "pods one", "serviceaccounts default")
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deletedAt := time.Now()
	w.deletePod("one")
	w.eventuallyMessage(node, coreKey("pods", w.ns, "one"), "tombstone after the grace", func(m wire.Message) bool {
		if time.Since(deletedAt) < time.Second {
			engine.AdmitNode(node) // its heartbeats continue for a while
		}
		return isDeleted(m)
	})
	if took := time.Since(deletedAt); took < 1900*time.Millisecond {
		t.Errorf("tombstone after %v", took)
	}
	w.eventuallyMessage(node, wire.SnapshotMarker(), "marker's tombstone", isDeleted)
	again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{names.LabelEdge: ""}}}
	if _, err := w.client.CoreV1().Nodes().Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallyMessage(node, wire.SnapshotMarker(), "marker again", isApplied)
	w.eventuallyMessage(node, coreKey("nodes", "", node), "Node again", isApplied)
}

func TestEngine_RefillsLostStream(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	engine := w.startEngine(desired.Config{}, &fakeOwnership{}, "desired")
	node := w.createNode("a")
	w.createPod("one", node)
	w.eventuallyHasObjects(node, "pods one", "serviceaccounts default")
	if err := w.js.DeleteStream(t.Context(), subject.DesiredStream); err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), w.js, topology.HubTopology(1, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	engine.Resync()
	w.eventuallyHasObjects(node, "pods one", "serviceaccounts default")
}

func TestEngine_OwnershipMovesWithoutLoss(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	w.createConfigMap("cm", "start")
	node := w.createNode("a")
	w.createPod("one", node, mountConfigMap("cm"))
	a, b := &fakeOwnership{}, &fakeOwnership{}
	b.setOwned(node, false)
	w.startEngine(desired.Config{}, a, "desired-a")
	w.startEngine(desired.Config{}, b, "desired-b")
	k := coreKey("configmaps", w.ns, "cm")
	for round := range 6 {
		old, next := a, b
		if round%2 == 1 {
			old, next = b, a
		}
		w.setConfigMap("cm", fmt.Sprint(round, " before"))
		if round < 3 { // both own it for a while
			next.setOwned(node, true)
			w.setConfigMap("cm", fmt.Sprint(round, " both"))
			old.setOwned(node, false)
		} else { // neither does
			old.setOwned(node, false)
			w.setConfigMap("cm", fmt.Sprint(round, " none"))
			next.setOwned(node, true)
		}
		last := fmt.Sprint(round, " after")
		w.setConfigMap("cm", last)
		kubetest.Eventually(t, 20*time.Second, func() error {
			if !isApplied(w.heldMessages(node)[k]) {
				return fmt.Errorf("not there")
			}
			var cm corev1.ConfigMap
			w.decodeObject(node, k, &cm)
			if cm.Data["value"] != last {
				return fmt.Errorf("round %d: value %q, want %q", round, cm.Data["value"], last)
			}
			return nil
		})
	}
}

func TestEngine_DeliveryMakesNoAPIRequests(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	w.createConfigMap("cm", "start")
	node := w.createNode("a")
	w.createPod("one", node, mountConfigMap("cm"))
	w.startEngine(desired.Config{}, &fakeOwnership{}, "desired-counted")
	k := coreKey("configmaps", w.ns, "cm")
	w.eventuallyMessage(node, k, "config map", isApplied)
	before := time.Now()
	const updates = 200
	var last wire.Message
	for i := range updates {
		w.setConfigMap("cm", fmt.Sprint(i))
		was := last.Digest
		last = w.eventuallyMessage(node, k, "update", func(m wire.Message) bool { return m.Digest != was })
	}
	counted := func(agent string) int {
		return len(w.cluster.Audit(t, before, func(r kubetest.AuditEntry) bool { return r.UserAgent == agent }))
	}
	kubetest.Eventually(t, 10*time.Second, func() error { // the log has caught up with the test's own requests
		patches := w.cluster.Audit(t, before, func(r kubetest.AuditEntry) bool {
			return r.Verb == "patch" && r.Object.Namespace == w.ns && r.Object.Name == "cm"
		})
		if len(patches) != updates {
			return fmt.Errorf("%d of %d updates in the audit log", len(patches), updates)
		}
		return nil
	})
	n := counted("desired-counted")
	t.Logf("%d delivered updates, %d requests of the engine to the apiserver", updates, n)
	if n != 0 {
		t.Errorf("%d requests for %d deliveries, want 0", n, updates)
	}
}

func TestEngine_PublishesManyObjects(t *testing.T) {
	w := newEngineEnv(t)
	w.createAccount("default")
	const nodes, maps = 20, 200
	var mounts []corev1.VolumeSource
	var projected corev1.ProjectedVolumeSource
	for i := range maps {
		name := fmt.Sprintf("cm-%03d", i)
		projected.Sources = append(projected.Sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: name},
			Items:                []corev1.KeyToPath{{Key: "value", Path: name}},
		}})
	}
	mounts = append(mounts, corev1.VolumeSource{Projected: &projected})
	for i := range nodes {
		w.createPod(fmt.Sprint("pod-", i), w.createNode(fmt.Sprint(i)), mounts...)
	}
	for i := range maps {
		w.createConfigMap(fmt.Sprintf("cm-%03d", i), "x")
	}
	began := time.Now()
	w.startEngine(desired.Config{NoServices: true}, &fakeOwnership{}, "desired")
	for i := range nodes {
		w.eventuallyMessage(fmt.Sprint(w.ns, "-", i), wire.SnapshotMarker(), "marker", isApplied)
	}
	took := time.Since(began)
	access := 0 // what the cluster grants every account
	for key := range w.heldMessages(fmt.Sprint(w.ns, "-", 0)) {
		if key.Group == rbacv1.GroupName {
			access++
		}
	}
	total := nodes * (maps + 4 + access)
	t.Logf("%d messages in %v with the cache's start: %.0f/s", total, took, float64(total)/took.Seconds())
	info, err := w.js.Stream(t.Context(), subject.DesiredStream)
	if err != nil {
		t.Fatal(err)
	}
	state, err := info.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if state.State.LastSeq != uint64(total) {
		t.Errorf("%d messages stored, want %d", state.State.LastSeq, total)
	}
}
