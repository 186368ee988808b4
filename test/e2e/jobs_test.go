package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/frond-edge/frond/api/operations"
	"github.com/frond-edge/frond/api/wire"
)

// prePullManifest is a job as users of KubeEdge write it, with a Secret as kubectl create secret docker-registry makes it.
const prePullManifest = `
apiVersion: v1
kind: Secret
metadata: {name: prepull, namespace: default}
type: kubernetes.io/dockerconfigjson
stringData: {.dockerconfigjson: '{"auths":{"registry.example":{"auth":"dXNlcjpwYXNzd29yZA=="}}}'}
---
apiVersion: operations.kubeedge.io/v1alpha1
kind: ImagePrePullJob
metadata: {name: prepull}
spec:
  imagePrePullTemplate:
    images: [registry.example/shop/till:3, registry.example/shop/scale:1]
    nodeNames: [edge-1, edge-2]
    imageSecrets: default/prepull
    checkItems: [mem]
    failureTolerate: 50%
    retryTimes: 1
    timeoutSeconds: 120
`

// jobPhases describes a job: its phase, and those of its nodes.
func jobPhases(ctx context.Context, name string) string {
	raw, err := shared.Kubectl(ctx, "", "get", "imageprepulljob", name, "-o", "json")
	if err != nil {
		return err.Error()
	}
	var job operations.ImagePrePullJob
	if err := json.Unmarshal([]byte(raw), &job); err != nil {
		return err.Error()
	}
	text := string(job.Status.Phase)
	for _, n := range job.Status.NodeStatus {
		text += fmt.Sprintf(" %s:%s", n.NodeName, n.Phase)
		if n.Phase != operations.NodeSuccessful && n.Reason != "" {
			text += "/" + n.Reason
		}
	}
	return text
}

func awaitJob(t *testing.T, name, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the job %s is %s", name, want), func(ctx context.Context) string {
		if got := jobPhases(ctx, name); got != want {
			return got
		}
		return ""
	})
}

// TestJobs_PrePull: a job of KubeEdge runs at the gateways that have a link; one without a link is Pending and gets its turn when it is back, though a
// cloudcore was killed meanwhile. Afterwards no gateway has the credentials.
func TestJobs_PrePull(t *testing.T) {
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := shared.Heal(ctx, "edge-2"); err != nil {
			t.Error(err)
		}
		if err := shared.Start(ctx, "cloudcore-1"); err != nil {
			t.Error(err)
		}
	})
	if err := shared.Cut(t.Context(), "edge-2", false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "edge-2 is away", func(ctx context.Context) string {
		out, err := shared.Kubectl(ctx, "", "get", "node", "edge-2", "-o", `jsonpath={.status.conditions[?(@.type=="EdgeConnected")].status}`)
		if err != nil || out == "True" {
			return fmt.Sprint(out, err)
		}
		return ""
	})
	applyManifest(t, prePullManifest)
	awaitJob(t, "prepull", "InProgress edge-1:Successful edge-2:Pending/Offline")
	if err := shared.Kill(t.Context(), "cloudcore-1"); err != nil {
		t.Fatal(err)
	}
	if err := shared.Heal(t.Context(), "edge-2"); err != nil {
		t.Fatal(err)
	}
	awaitJob(t, "prepull", "Completed edge-1:Successful edge-2:Successful")
	for _, edge := range []string{"edge-1", "edge-2"} {
		awaitGone(t, edge, wire.Key{Resource: "secrets", Namespace: "default", Name: "prepull"})
	}
	if left := strings.TrimSpace(runKubectl(t, "get", "nodetasks", "-o", "name")); left != "" {
		t.Errorf("tasks are left: %s", left)
	}
}
