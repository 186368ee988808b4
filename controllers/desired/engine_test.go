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

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/internal/kubetest"
	"github.com/frond-edge/frond/streams"
)

func applied(m wire.Message) bool { return m.Op == wire.Apply }
func deleted(m wire.Message) bool { return m.Op == wire.Delete }

func TestAPodBringsWhatItNeedsAndTakesItAway(t *testing.T) {
	w := newWorld(t)
	node := w.node("a")
	w.secret("pull")
	w.account("default", "pull")
	w.configMap("used", "1")
	w.configMap("unused", "1")
	w.secret("shared")
	w.secret("volume")
	w.secret("unused")
	w.volume("data", "volume")
	engine := w.engine(desired.Config{TombstoneAge: time.Second}, &owners{}, "desired")

	w.pod("one", node, mountConfigMap("used"), mountSecret("shared"),
		corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}})
	w.pod("two", node, mountSecret("shared"))
	base := []string{"pods two", "secrets shared", "serviceaccounts default", "secrets pull"}
	full := append([]string{
		"pods one", "configmaps used", "persistentvolumeclaims data", "persistentvolumes " + w.ns, "secrets volume",
	}, base...)
	w.eventuallyLists(node, full...)

	w.deletePod("one")
	w.eventuallyLists(node, base...)
	tomb := w.eventually(node, key("secrets", w.ns, "volume"), "tombstone", deleted)
	if tomb.UID == "" {
		t.Error("tombstone without a UID")
	}
	w.eventually(node, key("secrets", w.ns, "volume"), "purged", func(m wire.Message) bool {
		engine.Acked(node, tomb.Sequence+100) // again and again, as heartbeats do
		return m.Sequence == 0
	})

	w.deletePod("two")
	w.eventuallyLists(node)
}

// volume makes a bound pair of claim and volume; the volume is named as the namespace.
func (w *world) volume(claim, secret string) {
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

func TestAConfigMapDeletedAndCreatedAgainArrives(t *testing.T) {
	w := newWorld(t)
	node := w.node("a")
	w.account("default")
	w.engine(desired.Config{}, &owners{}, "desired")
	w.pod("one", node, mountConfigMap("cm"))
	k := key("configmaps", w.ns, "cm")
	for i := range 20 {
		cm := w.configMap("cm", fmt.Sprint(i))
		w.eventually(node, k, "new UID", func(m wire.Message) bool { return applied(m) && m.UID == string(cm.UID) })
		if err := w.client.CoreV1().ConfigMaps(w.ns).Delete(t.Context(), "cm", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 { // every other time faster than the tombstone
			w.eventually(node, k, "tombstone", func(m wire.Message) bool { return deleted(m) && m.UID == string(cm.UID) })
		}
	}
}

func TestASecretThatLeftAndWasPurgedComesBack(t *testing.T) {
	w := newWorld(t)
	node := w.node("a")
	w.account("default")
	w.secret("s")
	engine := w.engine(desired.Config{TombstoneAge: time.Second}, &owners{}, "desired")
	k := key("secrets", w.ns, "s")
	for i := range 3 {
		w.pod("one", node, mountSecret("s"))
		w.eventually(node, k, fmt.Sprint("arrives, round ", i), applied)
		w.deletePod("one")
		tomb := w.eventually(node, k, "leaves", deleted)
		w.eventually(node, k, "is purged", func(m wire.Message) bool {
			engine.Acked(node, tomb.Sequence) // again and again, as heartbeats do: the first may come before the engine has noted the tombstone
			return m.Sequence == 0
		})
	}
}

func TestAPodCreatedAgainWithItsNameAndATerminatingPod(t *testing.T) {
	w := newWorld(t)
	node := w.node("a")
	w.account("default")
	w.engine(desired.Config{}, &owners{}, "desired")
	first := w.pod("web-0", node)
	k := key("pods", w.ns, "web-0")
	w.eventually(node, k, "first", func(m wire.Message) bool { return m.UID == string(first.UID) })
	if err := w.client.CoreV1().Pods(w.ns).Delete(t.Context(), "web-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, 10*time.Second, func() error {
		var pod corev1.Pod
		w.object(node, k, &pod)
		if pod.DeletionTimestamp == nil {
			return fmt.Errorf("no deletion timestamp at version %s", pod.ResourceVersion)
		}
		return nil
	})
	w.deletePod("web-0")
	second := w.pod("web-0", node)
	w.eventually(node, k, "second", func(m wire.Message) bool { return applied(m) && m.UID == string(second.UID) })

	w.deletePod("web-0")
	other := w.node("b")
	w.pod("web-0", other)
	w.eventually(node, k, "gone from its old node", deleted)
	w.eventually(other, k, "on its new node", applied)
}

func TestTheNodesOwnReportsDoNotComeBack(t *testing.T) {
	w := newWorld(t)
	node := w.node("a")
	w.account("default")
	w.engine(desired.Config{}, &owners{}, "desired")
	w.pod("one", node)
	k := key("pods", w.ns, "one")
	before := w.eventually(node, k, "pod", applied)
	status := func(patch string) {
		t.Helper()
		_, err := w.client.CoreV1().Pods(w.ns).Patch(t.Context(), "one", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
		if err != nil {
			t.Fatal(err)
		}
	}
	status(`{"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}]}}`)
	status(`{"status":{"conditions":[{"type":"example.com/gate","status":"True"}]}}`)
	after := w.eventually(node, k, "gate", func(m wire.Message) bool { return m.Digest != before.Digest })
	var pod corev1.Pod
	w.object(node, k, &pod)
	if pod.Status.PodIP != "10.0.0.1" || len(pod.ManagedFields) != 0 || pod.Kind != "Pod" || pod.ResourceVersion != after.Version {
		t.Errorf("object: %+v", pod)
	}
	if n := w.published(node, k); n != 2 {
		t.Errorf("%d messages of the pod were published, want 2", n)
	}
}

func TestANodeThatAttachesBeforeItHasANode(t *testing.T) {
	w := newWorld(t)
	engine := w.engine(desired.Config{Grace: time.Hour}, &owners{}, "desired")
	name := w.ns + "-new"
	engine.Serve(name)
	w.eventually(name, wire.SnapshotMarker(), "marker", applied)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} // no edge label yet
	if _, err := w.client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually(name, key("nodes", "", name), "Node", applied)
	w.account("default")
	w.pod("one", name)
	w.eventually(name, key("pods", w.ns, "one"), "pod", applied)
	w.deletePod("one")
	w.eventually(name, key("pods", w.ns, "one"), "pod's tombstone", deleted)
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyEdgeNodesAreServed(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	plain := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-plain"}}
	if _, err := w.client.CoreV1().Nodes().Create(t.Context(), plain, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.pod("early", plain.Name)
	w.engine(desired.Config{}, &owners{}, "desired")
	edge := w.node("edge")
	w.pod("witness", edge)
	w.eventuallyLists(edge, "pods witness", "serviceaccounts default")
	if held := w.held(plain.Name); len(held) != 0 {
		t.Fatalf("a node of the cloud got %v", held)
	}
	label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:""}}}`, identity.EdgeLabel)
	if _, err := w.client.CoreV1().Nodes().Patch(t.Context(), plain.Name, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventuallyLists(plain.Name, "pods early", "serviceaccounts default")
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), plain.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestADeletedNodeKeepsItsObjectsForTheGrace(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	engine := w.engine(desired.Config{Grace: 2 * time.Second, NoServices: true}, &owners{}, "desired")
	node := w.node("a")
	w.pod("one", node)
	w.eventuallyLists(node, "pods one", "serviceaccounts default")
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deletedAt := time.Now()
	w.deletePod("one")
	w.eventually(node, key("pods", w.ns, "one"), "tombstone after the grace", func(m wire.Message) bool {
		if time.Since(deletedAt) < time.Second {
			engine.Serve(node) // its heartbeats go on for a while
		}
		return deleted(m)
	})
	if took := time.Since(deletedAt); took < 1900*time.Millisecond {
		t.Errorf("tombstone after %v", took)
	}
	w.eventually(node, wire.SnapshotMarker(), "marker's tombstone", deleted)
	again := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{identity.EdgeLabel: ""}}}
	if _, err := w.client.CoreV1().Nodes().Create(t.Context(), again, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually(node, wire.SnapshotMarker(), "marker again", applied)
	w.eventually(node, key("nodes", "", node), "Node again", applied)
}

func TestALostStreamIsFilledAgain(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	engine := w.engine(desired.Config{}, &owners{}, "desired")
	node := w.node("a")
	w.pod("one", node)
	w.eventuallyLists(node, "pods one", "serviceaccounts default")
	if err := w.js.DeleteStream(t.Context(), streams.DesiredStream); err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), w.js, streams.Hub(1)); err != nil {
		t.Fatal(err)
	}
	engine.Reload()
	w.eventuallyLists(node, "pods one", "serviceaccounts default")
}

func TestOwnershipMovesWithoutLoss(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	w.configMap("cm", "start")
	node := w.node("a")
	w.pod("one", node, mountConfigMap("cm"))
	a, b := &owners{}, &owners{}
	b.set(node, false)
	w.engine(desired.Config{}, a, "desired-a")
	w.engine(desired.Config{}, b, "desired-b")
	k := key("configmaps", w.ns, "cm")
	for round := range 6 {
		old, next := a, b
		if round%2 == 1 {
			old, next = b, a
		}
		w.setConfigMap("cm", fmt.Sprint(round, " before"))
		if round < 3 { // both own it for a while
			next.set(node, true)
			w.setConfigMap("cm", fmt.Sprint(round, " both"))
			old.set(node, false)
		} else { // nobody does
			old.set(node, false)
			w.setConfigMap("cm", fmt.Sprint(round, " none"))
			next.set(node, true)
		}
		last := fmt.Sprint(round, " after")
		w.setConfigMap("cm", last)
		kubetest.Eventually(t, 20*time.Second, func() error {
			if !applied(w.held(node)[k]) {
				return fmt.Errorf("not there")
			}
			var cm corev1.ConfigMap
			w.object(node, k, &cm)
			if cm.Data["value"] != last {
				return fmt.Errorf("round %d: value %q, want %q", round, cm.Data["value"], last)
			}
			return nil
		})
	}
}

func TestADeliveryCostsTheApiserverNothing(t *testing.T) {
	w := newWorld(t)
	w.account("default")
	w.configMap("cm", "start")
	node := w.node("a")
	w.pod("one", node, mountConfigMap("cm"))
	w.engine(desired.Config{}, &owners{}, "desired-counted")
	k := key("configmaps", w.ns, "cm")
	w.eventually(node, k, "config map", applied)
	before := time.Now()
	const updates = 200
	var last wire.Message
	for i := range updates {
		w.setConfigMap("cm", fmt.Sprint(i))
		was := last.Digest
		last = w.eventually(node, k, "update", func(m wire.Message) bool { return m.Digest != was })
	}
	counted := func(agent string) int {
		return len(w.cluster.Audit(t, before, func(r kubetest.Request) bool { return r.UserAgent == agent }))
	}
	kubetest.Eventually(t, 10*time.Second, func() error { // the log has caught up with the test's own requests
		patches := w.cluster.Audit(t, before, func(r kubetest.Request) bool {
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

func TestManyObjectsOnManyNodes(t *testing.T) {
	w := newWorld(t)
	w.account("default")
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
		w.pod(fmt.Sprint("pod-", i), w.node(fmt.Sprint(i)), mounts...)
	}
	for i := range maps {
		w.configMap(fmt.Sprintf("cm-%03d", i), "x")
	}
	began := time.Now()
	w.engine(desired.Config{NoServices: true}, &owners{}, "desired")
	for i := range nodes {
		w.eventually(fmt.Sprint(w.ns, "-", i), wire.SnapshotMarker(), "marker", applied)
	}
	took := time.Since(began)
	access := 0 // what the cluster grants every account
	for key := range w.held(fmt.Sprint(w.ns, "-", 0)) {
		if key.Group == rbacv1.GroupName {
			access++
		}
	}
	total := nodes * (maps + 4 + access)
	t.Logf("%d messages in %v with the cache's start: %.0f/s", total, took, float64(total)/took.Seconds())
	info, err := w.js.Stream(t.Context(), streams.DesiredStream)
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
