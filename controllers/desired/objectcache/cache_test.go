package objectcache

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/frond-edge/frond/controllers/desired/kinds"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/controllers/references"
)

// A mirror pod is created by the node itself: whatever it references, it grants the node nothing. kube-apiserver
// refuses one that names a service account or a Secret, as long as its admission plugins are the default ones.
func TestMirrorPod_GrantsNothing(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}}
	pod.Spec.ServiceAccountName = "admin"
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	runs := func(pod *corev1.Pod, account string) bool {
		packed, ok := podcache.Of(pod)
		return ok && runsAs(packed, account)
	}
	if !runs(pod, "admin") || runs(pod, "other") || len(references.OfPod(pod)) != 2 {
		t.Errorf("a pod of the cloud's brings %v", references.OfPod(pod))
	}
	ended := pod.DeepCopy()
	if ended.Status.Phase = corev1.PodSucceeded; runs(ended, "admin") {
		t.Error("a pod that has ended counts")
	}
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	if runs(pod, "admin") {
		t.Error("it counts as one that runs as the account it names")
	}
	if refs := references.OfPod(pod); len(refs) != 0 {
		t.Errorf("it brings %v", refs)
	}
}

// TestKind_InScope: a scope of pods lists packed pods with their ages, too.
func TestKind_InScope(t *testing.T) {
	store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc})
	born := metav1.Unix(100, 0)
	for _, namespace := range []string{"n", "m"} {
		o, err := podcache.Transform(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: namespace, CreationTimestamp: born}})
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	k := Kind{Spec: kinds.TableByID(false)[kinds.ID{Resource: "pods"}], Store: store}
	for namespace, count := range map[string]int{"": 2, "n": 1, "none": 0} {
		created, err := k.InScope(namespace)
		if err != nil || len(created) != count {
			t.Errorf("%q: %v, %v", namespace, created, err)
		}
		for key, at := range created {
			if key.Name != "p" || !at.Equal(born.Time) {
				t.Errorf("%s was created at %v", key.Human(), at)
			}
		}
	}
}
