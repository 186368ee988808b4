package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const resetManifest = `apiVersion: apps/v1
kind: Deployment
metadata: {name: to-reset, namespace: default, labels: {app: to-reset}}
spec:
  replicas: 2
  selector: {matchLabels: {app: to-reset}}
  template:
    metadata: {labels: {app: to-reset}}
    spec:
      nodeName: edge-2
      terminationGracePeriodSeconds: 1
      containers:
      - {name: main, image: "localhost/frond/tools:dev", imagePullPolicy: Never, command: [sleep, "36000"], volumeMounts: [{name: memory, mountPath: /memory}]}
      volumes: [{name: memory, emptyDir: {medium: Memory}}]
`

// frond reset ends real containers and unmounts their volumes, and a gateway that was reset joins again as a new machine.
func TestReset_EndsContainers(t *testing.T) {
	needContainers(t)
	applyManifest(t, resetManifest)
	awaitRunning(t, "app=to-reset", 2)
	edge := edgeConfig(t, "edge-2")
	file := filepath.Join(shared.Dir(), "edge-2", "edgecore.yaml")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := shared.Kill(t.Context(), "edge-2"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := errors.Join(os.MkdirAll(edge.Dir, 0o755), os.WriteFile(file, data, 0o600))
		if err := errors.Join(err, shared.Start(context.WithoutCancel(t.Context()), "edge-2")); err != nil {
			t.Error(err)
		}
	})
	onGateway := func(args ...string) (out, talk string) {
		t.Helper()
		cmd, err := shared.Command(t.Context(), "edge-2", args...)
		if err != nil {
			t.Fatal(err)
		}
		var errs strings.Builder
		cmd.Stderr = &errs
		printed, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v: %s", args, err, errs.String())
		}
		return string(printed), errs.String()
	}
	tasks := []string{"ctr", "--address", strings.TrimPrefix(edge.Runtime.Endpoint, "unix://"), "--namespace", "k8s.io", "tasks", "list", "--quiet"}
	if out, _ := onGateway(tasks...); len(strings.Fields(out)) < 4 { // two containers and two sandboxes
		t.Errorf("before the reset run %q", out)
	}
	out, talk := onGateway("frond", "reset", "--yes", "-o", "json", "--config", file, "--unit-dir", t.TempDir())
	var result struct {
		Node, PodsLeft string
		Pods           int
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil || result.Node != "edge-2" || result.Pods < 2 || result.PodsLeft != "" {
		t.Errorf("%v: %s%s", err, out, talk)
	}
	if out, _ := onGateway(tasks...); out != "" {
		t.Errorf("after the reset run %q", out)
	}
	for _, path := range []string{edge.Dir, file} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there: %v", path, err)
		}
	}
	if mounts, _ := onGateway("cat", "/proc/self/mounts"); strings.Contains(mounts, " "+edge.Dir+"/") {
		t.Errorf("left mounted:\n%s", mounts)
	}
}
