package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// runOnEdge runs a command on a gateway and returns its output and exit code.
func runOnEdge(t *testing.T, edge string, stdin io.Reader, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitTimeout)
	defer cancel()
	cmd, err := shared.Command(ctx, edge, args...)
	if err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), exitCode(err)
}

// runFrondEdge runs frond edge on edge-1, and fails the test if it fails.
func runFrondEdge(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, code := runOnEdge(t, "edge-1", nil, slices.Concat([]string{"frond", "edge"}, args)...)
	if code != 0 {
		t.Fatalf("frond edge %s: exit code %d: %s%s", strings.Join(args, " "), code, out, errs)
	}
	return out
}

// A technician at a gateway without a link lists its pods, reads logs, runs commands in containers, and restarts them.
func TestFrondEdge_WorksOffline(t *testing.T) {
	needContainers(t)
	applyManifest(t, scriptPod("field", "edge-1", "trap 'exit 0' TERM; echo started; while :; do sleep 0.1; done"))
	applyManifest(t, strings.Replace(scriptPod("once", "edge-1", "sleep 36000"), "spec:\n", "spec:\n  restartPolicy: Never\n", 1))
	awaitRunning(t, "app=field", 1)
	awaitRunning(t, "app=once", 1)
	if err := shared.Cut(t.Context(), "edge-1", true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	checkPodOutputs(t)
	before := localPod(t, "field")
	checkExec(t)
	checkRestart(t, before)
	for name, tt := range map[string]struct {
		args []string
		says string
	}{
		"a pod that is not there":        {[]string{"get", "pod", "none"}, "Error from server (NotFound)"},
		"what the gateway does not hold": {[]string{"get", "--raw", "/apis/apps/v1/namespaces/default/deployments"}, "cannot ask the cloud"},
		"no such container":              {[]string{"logs", "field", "-c", "none"}, "container none is not valid for pod field"},
		"a restart that would be an end": {[]string{"restart", "once"}, "restart policy Never"},
		"a restart of nobody":            {[]string{"restart", "none"}, `pods "none" not found`},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, code := runOnEdge(t, "edge-1", nil, slices.Concat([]string{"frond", "edge"}, tt.args)...)
			if code != 1 || !strings.Contains(errs, tt.says) {
				t.Errorf("exit code %d, %q, %q; want 1 and %q", code, out, errs, tt.says)
			}
		})
	}
	if once := localPod(t, "once"); once.Status.ContainerStatuses[0].State.Running == nil {
		t.Error("the pod that is never restarted was ended")
	}
}

// checkPodOutputs reads the gateway's pods in the output formats of kubectl.
func checkPodOutputs(t *testing.T) {
	t.Helper()
	if out := runFrondEdge(t, "get", "pods", "-A", "-o", "wide"); !strings.Contains(out, "NOMINATED NODE") || !strings.Contains(out, "field") {
		t.Errorf("get pods -o wide: %s", out)
	}
	if out := runFrondEdge(t, "get", "pod/field", "-o", "yaml"); !strings.Contains(out, "kind: Pod\n") {
		t.Errorf("get pod -o yaml: %s", out)
	}
	if out := runFrondEdge(t, "get", "nodes,pods", "-o", "name"); !strings.Contains(out, "node/edge-1") || !strings.Contains(out, "pod/field") {
		t.Errorf("get nodes,pods -o name: %s", out)
	}
	for _, want := range []string{"Node:", "edge-1", "Restart Count:", "Started"} {
		if out := runFrondEdge(t, "describe", "pod", "field"); !strings.Contains(out, want) {
			t.Errorf("describe pod lacks %q: %s", want, out)
		}
	}
	if out := runFrondEdge(t, "describe", "node", "edge-1"); !strings.Contains(out, "Non-terminated Pods:") {
		t.Errorf("describe node: %s", out)
	}
	if out := runFrondEdge(t, "logs", "field", "--tail=1"); out != "started\n" {
		t.Errorf("logs: %q", out)
	}
}

// checkExec runs commands in the container.
func checkExec(t *testing.T) {
	t.Helper()
	if _, errs, code := runOnEdge(t, "edge-1", nil, "frond", "edge", "exec", "field", "--", "sh", "-c", "exit 42"); code != 42 {
		t.Errorf("exit 42 became %d: %s", code, errs)
	}
	data := bytes.Repeat([]byte{0, 1, 0xff, '\n'}, 256<<10)
	if out, errs, code := runOnEdge(t, "edge-1", bytes.NewReader(data), "frond", "edge", "exec", "-i", "field", "--", "cat"); code != 0 || out != string(data) {
		t.Errorf("there and back: %d bytes, %q, %d", len(out), errs, code)
	}
}

// checkRestart restarts the pod's container gracefully: it ends with code 0.
func checkRestart(t *testing.T, before corev1.Pod) {
	t.Helper()
	var result []struct {
		Container, ID, NewID string
		Restarts             int
	}
	out := runFrondEdge(t, "restart", "field", "-o", "json")
	if err := json.Unmarshal([]byte(out), &result); err != nil || len(result) != 1 {
		t.Fatalf("restart -o json: %v: %s", err, out)
	}
	after := localPod(t, "field")
	was, is := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]
	if after.UID != before.UID || after.Status.PodIP != before.Status.PodIP {
		t.Errorf("the pod was replaced: %s %s, then %s %s", before.UID, before.Status.PodIP, after.UID, after.Status.PodIP)
	}
	want := fmt.Sprintf("main from %s to %s, 1 restart", was.ContainerID, is.ContainerID)
	if got := fmt.Sprintf("%s from containerd://%s to containerd://%s, %d restart", result[0].Container, result[0].ID, result[0].NewID, result[0].Restarts); got != want || was.ContainerID == is.ContainerID {
		t.Errorf("restart says %q, the pod says %q", got, want)
	}
	if ended := is.LastTerminationState.Terminated; ended == nil || ended.ExitCode != 0 {
		t.Errorf("the container was not given its grace time: %+v", ended)
	}
	if out := runFrondEdge(t, "logs", "field", "--previous"); out != "started\n" {
		t.Errorf("logs --previous: %q", out)
	}
}

// localPod reads a pod from its gateway's API.
func localPod(t *testing.T, name string) corev1.Pod {
	t.Helper()
	var pod corev1.Pod
	if err := json.Unmarshal([]byte(runFrondEdge(t, "get", "pod", name, "-o", "json")), &pod); err != nil {
		t.Fatal(err)
	}
	return pod
}
