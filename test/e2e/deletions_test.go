package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
)

// deletionsHeld reads the status and reason of the Node condition for held deletions.
func deletionsHeld(ctx context.Context, node string) (status corev1.ConditionStatus, reason string, err error) {
	c, err := nodeCondition(ctx, node, "EdgeDeletionsHeld")
	if err == nil && c.Type == "" {
		return corev1.ConditionFalse, "", nil
	}
	return c.Status, c.Reason, err
}

// forceDelete deletes pods from Kubernetes at once, without their termination.
func forceDelete(t *testing.T, list []corev1.Pod) {
	t.Helper()
	args := []string{"delete", "pod", "--force", "--grace-period=0"}
	for i := range list {
		args = append(args, list[i].Name)
	}
	runKubectl(t, args...)
}

// TestDeletions_MadeWhileOffline: deletions during an outage take effect as soon as the link is back, without confirmation if they are
// few. If they are most of the gateway's pods, and forced, all other changes arrive and the pods keep running until an operator
// confirms.
func TestDeletions_MadeWhileOffline(t *testing.T) {
	const edge, swept = "edge-1", 8
	var manifests []string
	for i := range swept {
		p := scriptPod(fmt.Sprintf("swept-%d", i), edge, "sleep 36000")
		manifests = append(manifests, strings.Replace(p, fmt.Sprintf("{app: swept-%d}", i), "{app: swept}", 1))
	}
	applyManifest(t, strings.Join(manifests, "---"))
	applyManifest(t, manyConfigMaps("kept", edge, 1))
	list := awaitRunning(t, "app=swept", swept)
	awaitRunning(t, "app=kept", 1)
	awaitValue(t, "kept-0", "0", edge)
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), edge); err != nil {
			t.Error(err)
		}
	})

	away := func(deleted []corev1.Pod, word string) {
		t.Helper()
		if err := shared.Cut(t.Context(), edge, false); err != nil {
			t.Fatal(err)
		}
		forceDelete(t, deleted)
		if err := setConfigMap(t.Context(), sharedKube, "kept-0", word); err != nil {
			t.Fatal(err)
		}
		if err := shared.Heal(t.Context(), edge); err != nil {
			t.Fatal(err)
		}
		awaitValue(t, "kept-0", word, edge)
	}
	leave := func(deleted []corev1.Pod) {
		t.Helper()
		for i := range deleted {
			awaitGone(t, edge, wire.Key{Resource: "pods", Namespace: "default", Name: deleted[i].Name})
		}
	}

	few, most := list[:1], list[1:]
	before := localContainers(t, edge, most)
	away(few, "few")
	leave(few)
	if status, reason, err := deletionsHeld(t.Context(), edge); err != nil || status != corev1.ConditionFalse {
		t.Errorf("one pod of %d: EdgeDeletionsHeld is %s, %s, %v", swept, status, reason, err)
	}

	away(most, "most")
	eventually(t, "the deletions are held", func(ctx context.Context) string {
		status, reason, err := deletionsHeld(ctx, edge)
		if err != nil || status != corev1.ConditionTrue || reason != string(wire.HoldMassDelete) {
			return fmt.Sprint(status, " ", reason, " ", err)
		}
		return ""
	})
	if after := localContainers(t, edge, most); !maps.Equal(before, after) {
		t.Errorf("held pods changed:\n%v\n%v", before, after)
	}
	var done []struct{ Node string }
	if err := frondJSON(t.Context(), &done, "confirm", edge); err != nil || len(done) != 1 || done[0].Node != edge {
		t.Fatalf("frond confirm: %v, %v", done, err)
	}
	leave(most)
	eventually(t, "nothing is held any more", func(ctx context.Context) string {
		status, reason, err := deletionsHeld(ctx, edge)
		if err != nil || status != corev1.ConditionFalse {
			return fmt.Sprint(status, " ", reason, " ", err)
		}
		return ""
	})
	awaitRunning(t, "app=kept", 1)
}

// localContainers maps the containers of pods to their ids in the gateway's own API.
func localContainers(t *testing.T, edge string, list []corev1.Pod) map[string]string {
	t.Helper()
	found, err := containerIDs(t.Context(), edge, list)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != len(list) {
		t.Fatalf("%s runs %v, want the containers of %d pods", edge, found, len(list))
	}
	return found
}
