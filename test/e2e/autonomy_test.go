package e2e_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/inspect"
	"github.com/frond-edge/frond/api/names"
)

// nodeGroupManifest is a NodeGroup of one node with a value of the annotation frond.io/autonomy.
func nodeGroupManifest(name, node, value string) string {
	return fmt.Sprintf("apiVersion: apps.kubeedge.io/v1alpha1\nkind: NodeGroup\nmetadata: {name: %s, annotations: {%s: %q}}\nspec: {nodes: [%s]}\n",
		name, names.AnnotationAutonomy, value, node)
}

// checkTolerations returns a message unless the selected pods all have (or, with want false, all lack) unlimited tolerations; "" if they do.
func checkTolerations(ctx context.Context, selector string, want bool) string {
	list, err := listPods(ctx, selector)
	if err != nil {
		return err.Error()
	}
	for i := range list {
		ever := slices.ContainsFunc(list[i].Spec.Tolerations, func(t corev1.Toleration) bool {
			return t.Key == corev1.TaintNodeUnreachable && t.TolerationSeconds == nil
		})
		if ever != want {
			return fmt.Sprintf("%s tolerates %v", list[i].Name, list[i].Spec.Tolerations)
		}
	}
	return ""
}

// expectAutonomy waits until frond status shows how long the pods of a node stay, and which group sets it.
func expectAutonomy(node, value, group string) func(context.Context) string {
	return func(ctx context.Context) string {
		var n inspect.Node
		if err := frondJSON(ctx, &n, "status", node); err != nil {
			return err.Error()
		}
		if n.Autonomy != value || n.AutonomyGroup != group {
			return fmt.Sprintf("%q of group %q", n.Autonomy, n.AutonomyGroup)
		}
		return ""
	}
}

// TestNodeGroup_IsAutonomous checks that cloudcore, with its own permissions, follows a NodeGroup.
func TestNodeGroup_IsAutonomous(t *testing.T) {
	applyManifest(t, strings.ReplaceAll(evictedPod, "leaver", "grouped"))
	awaitRunning(t, "app=grouped", 1)
	applyManifest(t, nodeGroupManifest("calm", "edge-1", names.AutonomyForever))
	eventually(t, "its pod tolerates that it is away", func(ctx context.Context) string { return checkTolerations(ctx, "app=grouped", true) })
	eventually(t, "frond status tells", expectAutonomy("edge-1", names.AutonomyForever, "calm"))
	runKubectl(t, "annotate", "node", "edge-1", names.AnnotationAutonomy+"=0s")
	t.Cleanup(func() {
		if _, err := shared.Kubectl(context.WithoutCancel(t.Context()), "", "annotate", "node", "edge-1", names.AnnotationAutonomy+"-"); err != nil {
			t.Error(err)
		}
	})
	eventually(t, "the Node has opted out", func(ctx context.Context) string { return checkTolerations(ctx, "app=grouped", false) })
	eventually(t, "frond status tells", expectAutonomy("edge-1", "", ""))
	runKubectl(t, "annotate", "node", "edge-1", names.AnnotationAutonomy+"-")
	eventually(t, "and in again", func(ctx context.Context) string { return checkTolerations(ctx, "app=grouped", true) })
	runKubectl(t, "annotate", "nodegroup", "calm", "--overwrite", names.AnnotationAutonomy+"=soon")
	eventually(t, "what is not understood is as if it were not there", func(ctx context.Context) string { return checkTolerations(ctx, "app=grouped", false) })
	eventually(t, "kubectl describe tells what is not understood", func(ctx context.Context) string {
		text, err := shared.Kubectl(ctx, "", "describe", "ng", "calm")
		if err != nil {
			return err.Error()
		}
		if !strings.Contains(text, "AutonomyNotUnderstood") {
			return text
		}
		return ""
	})
}
