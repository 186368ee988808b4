package e2e_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestStaticPod_HasMirror puts a manifest into a gateway's folder: the pod runs, and Kubernetes shows its mirror.
func TestStaticPod_HasMirror(t *testing.T) {
	file := filepath.Join(shared.Dir(), "edge-1", "manifests", "beacon.yaml")
	manifest := `
apiVersion: v1
kind: Pod
metadata: {name: beacon, namespace: default, labels: {app: beacon}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: localhost/frond/tools:dev, imagePullPolicy: Never, command: [sleep, "36000"]}
`
	if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(file) }) // gone already unless the test failed
	pod := awaitRunning(t, "app=beacon", 1)[0]
	if pod.Name != "beacon-edge-1" || pod.Annotations["kubernetes.io/config.mirror"] == "" {
		t.Errorf("%s with annotations %v is no mirror pod of edge-1", pod.Name, pod.Annotations)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the mirror goes with the manifest", func(ctx context.Context) string {
		list, err := listPods(ctx, "app=beacon")
		if err != nil {
			return err.Error()
		}
		return describePods(list)
	})
}
