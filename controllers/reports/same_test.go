package reports_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/frond-edge/frond/api/podstatus"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/reports"
	"github.com/frond-edge/frond/test/kit"
)

func readyPod(name, node string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

func digestOf(t *testing.T, pod *corev1.Pod) wire.PodDigest {
	t.Helper()
	digest, err := podstatus.Digest(pod.Status)
	kit.Must(t, err)
	return wire.PodDigest{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Digest: digest}
}

// Only a node's own pods, of the same UID and status, need no report. A node that guesses another's status right learns nothing.
func TestComparePods_OnlyOwnUnchangedPods(t *testing.T) {
	same, foreign := readyPod("same", "edge-1", corev1.ConditionTrue), readyPod("foreign", "edge-2", corev1.ConditionTrue)
	marked := readyPod("marked", "edge-1", corev1.ConditionFalse) // by Kubernetes, while the link was down
	cached := fake.NewClientBuilder().WithObjects(same, foreign, marked).Build()
	otherUID := digestOf(t, same)
	otherUID.UID = "earlier"
	request := wire.SameRequest{Pods: []wire.PodDigest{
		digestOf(t, foreign), digestOf(t, readyPod("marked", "edge-1", corev1.ConditionTrue)), otherUID,
		digestOf(t, readyPod("gone", "edge-1", corev1.ConditionTrue)), digestOf(t, same),
	}}
	reply, err := reports.ComparePods(t.Context(), cached, "edge-1", request)
	if err != nil || !slices.Equal(reply.Same, []int{4}) {
		t.Errorf("same %v, %v; want the last alone", reply.Same, err)
	}
}

func TestComparePods_RefusesMalformed(t *testing.T) {
	good := digestOf(t, readyPod("p", "edge-1", corev1.ConditionTrue))
	for name, change := range map[string]func(*wire.PodDigest){
		"namespace": func(d *wire.PodDigest) { d.Namespace = "" }, "name": func(d *wire.PodDigest) { d.Name = "" },
		"uid": func(d *wire.PodDigest) { d.UID = "" }, "digest": func(d *wire.PodDigest) { d.Digest = "" },
	} {
		bad := good
		change(&bad)
		if _, err := reports.ComparePods(t.Context(), fake.NewClientBuilder().Build(), "edge-1", wire.SameRequest{Pods: []wire.PodDigest{bad}}); !errors.Is(err, wire.ErrPermanent) {
			t.Errorf("without %s: %v", name, err)
		}
	}
	many := wire.SameRequest{Pods: slices.Repeat([]wire.PodDigest{good}, wire.MaxPodDigests+1)}
	if _, err := reports.ComparePods(t.Context(), fake.NewClientBuilder().Build(), "edge-1", many); !errors.Is(err, wire.ErrPermanent) {
		t.Errorf("too many: %v", err)
	}
}

// Against a real apiserver: what has been reported is the same, in the form in which the API holds it, and a mark of Kubernetes is not.
// Each answer agrees with what the handling of the report does.
func TestComparePods_AgreesWithReports(t *testing.T) {
	w := newApplierEnv(t)
	node := w.createNode("a")
	created := w.createPod("one", node.Name)
	gate := []byte(`{"status":{"conditions":[{"type":"example.com/gate","status":"True"}]}}`)
	pod, err := w.client.CoreV1().Pods(w.ns).Patch(t.Context(), created.Name, types.StrategicMergePatchType, gate, metav1.PatchOptions{}, "status")
	kit.Must(t, err)
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
	local := withStatus(pod, corev1.PodRunning, "first", ready, pod.Status.Conditions[0]) // in another order than a patch makes
	report := w.reportOf(node.Name, wire.Apply, "pods", local)
	request := wire.SameRequest{Pods: []wire.PodDigest{digestOf(t, local)}}
	awaitSame := func(want int) {
		t.Helper()
		kit.Succeeds(t, 10*time.Second, func() error { // until the cache has seen the write
			reply, err := reports.ComparePods(t.Context(), w.cached, node.Name, request)
			if err == nil && len(reply.Same) != want {
				err = fmt.Errorf("%d are the same, want %d", len(reply.Same), want)
			}
			return err
		})
	}
	awaitSame(0)
	w.handleReport(report)
	awaitSame(1)
	marked := []byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
	_, err = w.client.CoreV1().Pods(w.ns).Patch(t.Context(), "one", types.StrategicMergePatchType, marked, metav1.PatchOptions{}, "status")
	kit.Must(t, err)
	awaitSame(0)
	w.handleReport(report) // the report that the answer asks for repairs it
	awaitSame(1)
	w.wantDropped(report, "unchanged")
}
