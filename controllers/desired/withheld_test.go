package desired_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// withheldRecorder collects what an engine reports.
type withheldRecorder struct {
	mu  sync.Mutex
	all []string // guarded by mu
}

func (w *withheldRecorder) recordWithheld(node string, object, referrer wire.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all = append(w.all, fmt.Sprintf("%s: %s by %s", node, object.Human(), referrer.Human()))
}

func (w *withheldRecorder) sortedReports() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Sorted(slices.Values(w.all))
}

// liveInNamespace lists the live objects of a namespace that the stream holds for a node.
func (w *engineEnv) liveInNamespace(node, namespace string) []string {
	w.Helper()
	var found []string
	for key, m := range w.heldMessages(node) {
		if m.Op != wire.Delete && key.Namespace == namespace {
			found = append(found, key.Human())
		}
	}
	slices.Sort(found)
	return found
}

// createVolumeWithSecret creates a claim in the environment's namespace, bound to a volume that is mounted with a
// Secret of another one.
func (w *engineEnv) createVolumeWithSecret(claim, namespace, secret string) {
	w.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes, class, name := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, "", w.ns+"-"+claim
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{
		Capacity: size, AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: w.ns, Name: claim},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
			Driver: "csi.example.com", VolumeHandle: "1", NodePublishSecretRef: &corev1.SecretReference{Namespace: namespace, Name: secret},
		}},
	}}
	if _, err := w.client.CoreV1().PersistentVolumes().Create(w.Context(), volume, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	claims := w.client.CoreV1().PersistentVolumeClaims(w.ns)
	made, err := claims.Create(w.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: claim},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, StorageClassName: &class, VolumeName: name, Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	made.Status = corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound, AccessModes: modes, Capacity: size}
	if _, err := claims.UpdateStatus(w.Context(), made, metav1.UpdateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// populateNamespace creates objects in a namespace that reach a node in each possible way: a bound pod with all it
// references, a Service for every node, a role of every service account, and the objects of a scope.
func (w *engineEnv) populateNamespace(node string) {
	w.Helper()
	w.createAccount("default", "pull")
	w.createSecret("pull")
	w.createSecret("keys")
	w.createConfigMap("settings", "1")
	w.createPod("bound", node, mountSecret("keys"), mountConfigMap("settings"))
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "api"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if _, err := w.client.CoreV1().Services(w.ns).Create(w.Context(), service, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { // every node of every test gets it
		_ = w.client.CoreV1().Services(w.ns).Delete(context.WithoutCancel(w.Context()), "api", metav1.DeleteOptions{})
	})
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "everybody"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "system:serviceaccounts"}},
	}
	if _, err := w.client.RbacV1().RoleBindings(w.ns).Create(w.Context(), binding, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// TestEngine_WithholdsProtectedNamespaces: nothing of a protected namespace is published, whatever refers to it, and
// everything else is. What the node needed is reported once, with its referrer.
func TestEngine_WithholdsProtectedNamespaces(t *testing.T) {
	w := newEngineEnv(t)
	inside := &engineEnv{TB: t, cluster: w.cluster, client: w.client, ns: w.cluster.Namespace(t), publisher: w.publisher, js: w.js}
	node := w.createNode("a")
	inside.populateNamespace(node)
	w.createAccount("default")
	w.createConfigMap("own", "1")
	w.createVolumeWithSecret("disk", inside.ns, "keys")
	w.createPod("good", node, mountConfigMap("own"), corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "disk"}})

	var reported withheldRecorder
	everywhere := wire.Scope{Version: "v1", Resource: "configmaps"}
	within := wire.Scope{Version: "v1", Resource: "secrets", Namespace: inside.ns}
	engine := w.startEngine(desired.Config{
		Protected: controllers.ProtectNamespaces(inside.ns), OnWithheld: reported.recordWithheld,
		Scopes: func(string) ([]wire.ScopeKind, bool, error) {
			return []wire.ScopeKind{{Scope: everywhere, Kind: "ConfigMap", Namespaced: true}, {Scope: within, Kind: "Secret", Namespaced: true}}, true, nil
		},
	}, &fakeOwnership{}, "withheld")
	marker := func(s wire.Scope) func(wire.Message) bool {
		return func(m wire.Message) bool { return m.Key == s.Marker() && m.Op == wire.Apply }
	}
	w.eventuallyMessage(node, everywhere.Marker(), "the scope is complete", marker(everywhere))
	w.eventuallyMessage(node, wire.SnapshotMarker(), "all is published", func(m wire.Message) bool { return m.Op == wire.Apply })
	for _, key := range []wire.Key{{Resource: "pods", Name: "good"}, {Resource: "configmaps", Name: "own"}, {Resource: "persistentvolumeclaims", Name: "disk"}} {
		key.Namespace = w.ns
		if w.heldMessages(node)[key].Op != wire.Apply {
			t.Errorf("%s is not published", key.Human())
		}
	}
	if m := w.heldMessages(node)[within.Marker()]; m.Op == wire.Apply {
		t.Error("a scope on the protected namespace is complete")
	}
	if engine.RunsServiceAccount(node, inside.ns, "default") {
		t.Error("the node may speak for an account of the protected namespace")
	}
	pod := "pods " + inside.ns + "/bound"
	want := []string{
		node + ": " + pod + " by " + pod,
		node + ": secrets " + inside.ns + "/keys by persistentvolumes " + w.ns + "-disk",
	}
	if got := reported.sortedReports(); !slices.Equal(got, want) {
		t.Errorf("reported %q, want %q", got, want)
	}
	// Changes and a reload publish nothing either, and report nothing again.
	inside.setConfigMap("settings", "2")
	inside.createSecret("later")
	w.setConfigMap("own", "2")
	engine.Resync(node)
	w.eventuallyMessage(node, wire.Key{Resource: "configmaps", Namespace: w.ns, Name: "own"}, "the change is published", func(wire.Message) bool {
		var own corev1.ConfigMap
		w.decodeObject(node, wire.Key{Resource: "configmaps", Namespace: w.ns, Name: "own"}, &own)
		return own.Data["value"] == "2"
	})
	if found := w.liveInNamespace(node, inside.ns); len(found) > 0 {
		t.Errorf("the stream holds %q", found)
	}
	if got := reported.sortedReports(); !slices.Equal(got, want) {
		t.Errorf("reported %q, want %q", got, want)
	}
}

// TestEngine_RemovesNewlyProtectedObjects: what was published before a namespace was protected is removed at once,
// however much it is.
func TestEngine_RemovesNewlyProtectedObjects(t *testing.T) {
	w := newEngineEnv(t)
	node := w.createNode("a")
	w.populateNamespace(node)
	for i := range 6 { // a mass delete by the guard's measure
		w.createPod(fmt.Sprintf("more-%d", i), node)
	}
	owner := &fakeOwnership{}
	w.startEngine(desired.Config{Guard: desired.Guard{Minimum: 5, Share: 0.5}}, owner, "before")
	w.eventuallyMessage(node, wire.Key{Resource: "secrets", Namespace: w.ns, Name: "keys"}, "it is published", func(m wire.Message) bool { return m.Op == wire.Apply })
	w.eventuallyMessage(node, wire.SnapshotMarker(), "all is published", func(m wire.Message) bool { return m.Op == wire.Apply })
	if len(w.liveInNamespace(node, w.ns)) < 10 {
		t.Fatalf("the stream holds %q only", w.liveInNamespace(node, w.ns))
	}
	owner.setOwned(node, false)
	w.startEngine(desired.Config{Guard: desired.Guard{Minimum: 5, Share: 0.5}, Protected: controllers.ProtectNamespaces(w.ns)}, &fakeOwnership{}, "after")
	kubetest.Eventually(t, 20*time.Second, func() error {
		if found := w.liveInNamespace(node, w.ns); len(found) > 0 {
			return errors.New("the stream still holds " + fmt.Sprint(found))
		}
		return nil
	})
}
