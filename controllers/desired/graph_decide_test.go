package desired_test

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/desired"
	"github.com/frond-edge/frond/controllers/references"
)

func TestDecidePlace(t *testing.T) {
	for name, tt := range map[string]struct {
		wantUID, wantDigest string
		sequence            uint64
		deleted             bool
		uid, digest         string
		keep                bool
		acked               uint64
		want                string
	}{
		"new":                              {wantUID: "u", wantDigest: "d", want: "publish"},
		"same":                             {wantUID: "u", wantDigest: "d", sequence: 1, uid: "u", digest: "d", want: "nothing"},
		"changed":                          {wantUID: "u", wantDigest: "e", sequence: 1, uid: "u", digest: "d", want: "publish"},
		"created again, same content":      {wantUID: "v", wantDigest: "d", sequence: 1, uid: "u", digest: "d", want: "publish"},
		"back after its tombstone":         {wantUID: "u", wantDigest: "d", sequence: 2, deleted: true, uid: "u", acked: 9, want: "publish"},
		"changed while the node is absent": {wantUID: "u", wantDigest: "e", sequence: 1, uid: "u", digest: "d", keep: true, want: "publish"},
		"not wanted, not held":             {want: "nothing"},
		"no longer wanted":                 {sequence: 1, uid: "u", want: "tombstone"},
		"kept for an absent node":          {sequence: 1, uid: "u", keep: true, want: "nothing"},
		"tombstone not acked":              {sequence: 5, deleted: true, acked: 4, want: "nothing"},
		"tombstone acked":                  {sequence: 5, deleted: true, acked: 5, want: "purge"},
	} {
		t.Run(name, func(t *testing.T) {
			got := desired.Decide(tt.wantUID, tt.wantDigest, tt.sequence, tt.deleted, tt.uid, tt.digest, tt.keep, tt.acked)
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

func TestPayload_DigestOfRelevantFields(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n", ResourceVersion: "1", UID: "u"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning},
		}
		change(p)
		return p
	}
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}}
		change(n)
		return n
	}
	condition := func(kind corev1.PodConditionType) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: kind, Status: corev1.ConditionTrue}}
		}
	}
	same := func(*corev1.Pod) {}
	for name, tt := range map[string]struct {
		a, b    client.Object
		differs bool
	}{
		"pod version":             {pod(same), pod(func(p *corev1.Pod) { p.ResourceVersion = "2" }), false},
		"pod managed fields":      {pod(same), pod(func(p *corev1.Pod) { p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "m"}} }), false},
		"pod running":             {pod(same), pod(func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1"; p.Status.Phase = "Pending" }), false},
		"pod ready":               {pod(same), pod(condition(corev1.PodReady)), false},
		"pod readiness gate":      {pod(same), pod(condition("example.com/gate")), true},
		"pod disrupted":           {pod(same), pod(condition(corev1.DisruptionTarget)), true},
		"pod failed by the cloud": {pod(same), pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), true},
		"pod deleted":             {pod(same), pod(func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }), true},
		"pod label":               {pod(same), pod(func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }), true},
		"pod spec":                {pod(same), pod(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = new(int64) }), true},
		"node heartbeat": {node(func(*corev1.Node) {}), node(func(n *corev1.Node) {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady}}
		}), false},
		"node attached volume": {node(func(*corev1.Node) {}), node(func(n *corev1.Node) {
			n.Status.VolumesAttached = []corev1.AttachedVolume{{Name: "v"}}
		}), true},
		"node taint": {node(func(*corev1.Node) {}), node(func(n *corev1.Node) { n.Spec.Unschedulable = true }), true},
		"config map version": {
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"}},
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "2"}}, false,
		},
		"config map data": {&corev1.ConfigMap{}, &corev1.ConfigMap{Data: map[string]string{"a": `"metadata":{`}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a, _, err := desired.Digest(tt.a)
			if err != nil {
				t.Fatal(err)
			}
			b, object, err := desired.Digest(tt.b)
			if err != nil {
				t.Fatal(err)
			}
			if (a != b) != tt.differs {
				t.Errorf("differs: %v, want %v", a != b, tt.differs)
			}
			back := tt.b.DeepCopyObject().(client.Object)
			back.SetManagedFields(nil)
			want, err := json.Marshal(back)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(decodeJSON(t, want), decodeJSON(t, object)); diff != "" {
				t.Errorf("object (-want +got):\n%s", diff)
			}
		})
	}
}

func decodeJSON(t *testing.T, data []byte) (v map[string]any) {
	t.Helper()
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	return v
}

// The graph maintains, step by step, the sets that a walk over all references would find.
func TestGraph_AgreesWithWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := desired.NewGraph()
		home := map[wire.Key]string{}
		layer := func(i int) []wire.Key { // references go from a layer to the next
			var keys []wire.Key
			for n := range 4 {
				keys = append(keys, coreKey(fmt.Sprintf("layer%d", i), "n", fmt.Sprint(n)))
			}
			return keys
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			at := rapid.IntRange(0, 2).Draw(t, "layer")
			k := rapid.SampledFrom(layer(at)).Draw(t, "key")
			if at == 0 && rapid.Bool().Draw(t, "place") {
				home[k] = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "home")
				g.Place(k, home[k])
			} else {
				g.Refs[k] = rapid.SliceOfNDistinct(rapid.SampledFrom(layer(at+1)), 0, 3, rapid.ID[wire.Key]).Draw(t, "refs")
				g.Refresh(k)
			}
			all := map[wire.Key]bool{}
			for _, node := range []string{"a", "b"} {
				want := walkReferences(g.Refs, home, node)
				for k := range want {
					all[k] = true
				}
				if diff := cmp.Diff(want, g.Wants(node)); diff != "" {
					t.Fatalf("wants of %s (-want +got):\n%s", node, diff)
				}
			}
			if g.Size() != len(all) {
				t.Fatalf("graph holds %d objects, %d are needed", g.Size(), len(all))
			}
		}
	})
}

func walkReferences(refs map[wire.Key][]wire.Key, home map[wire.Key]string, node string) map[wire.Key]bool {
	found := map[wire.Key]bool{}
	var visit func(wire.Key)
	visit = func(k wire.Key) {
		found[k] = true
		for _, ref := range refs[k] {
			visit(ref)
		}
	}
	for k, at := range home {
		if at == node {
			visit(k)
		}
	}
	return found
}

// TestGraph_ReportsReferencesFirst: a pod must not reach its node before what it mounts.
func TestGraph_ReportsReferencesFirst(t *testing.T) {
	pod, claim, volume, secret := coreKey("pods", "n", "p"), coreKey("persistentvolumeclaims", "n", "c"), coreKey("persistentvolumes", "", "v"), coreKey("secrets", "n", "s")
	g := desired.NewGraph()
	g.Refs[pod], g.Refs[claim], g.Refs[volume] = []wire.Key{claim, secret}, []wire.Key{volume}, []wire.Key{secret}
	var told []wire.Key
	g.OnChange = func(k wire.Key) { told = append(told, k) }
	g.Place(pod, "node")
	if diff := cmp.Diff([]wire.Key{secret, volume, claim, pod}, told); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
}

// A mirror pod is created by the node itself: whatever it references, it grants the node nothing. kube-apiserver
// refuses one that names a service account or a Secret, as long as its admission plugins are the default ones.
func TestMirrorPod_GrantsNothing(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n"}}
	pod.Spec.ServiceAccountName = "admin"
	pod.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "pull"}}
	if !desired.RunsAs(pod, "admin") || desired.RunsAs(pod, "other") || len(references.OfPod(pod)) != 2 {
		t.Errorf("a pod of the cloud's brings %v", references.OfPod(pod))
	}
	ended := pod.DeepCopy()
	if ended.Status.Phase = corev1.PodSucceeded; desired.RunsAs(ended, "admin") {
		t.Error("a pod that has ended counts")
	}
	pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	if desired.RunsAs(pod, "admin") {
		t.Error("it counts as one that runs as the account it names")
	}
	if refs := references.OfPod(pod); len(refs) != 0 {
		t.Errorf("it brings %v", refs)
	}
}
