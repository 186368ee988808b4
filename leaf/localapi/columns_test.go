package localapi_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestPodTable: an operator reads the same cells on the gateway as from an apiserver (k8s.io/kubernetes
// pkg/printers/internalversion, printPod).
func TestPodTable(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	yes := true
	now := metav1.Now()
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	ended := func(code int32, reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Reason: reason}}
	}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	ready := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for name, tt := range map[string]struct {
		change func(*corev1.Pod)
		want   string // ready, status, restarts
	}{
		"pending": {func(*corev1.Pod) {}, "0/1 Pending 0"},
		"starting": {func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: waiting("ContainerCreating")}}
		}, "0/1 ContainerCreating 0"},
		"running": {func(p *corev1.Pod) {
			p.Status.Phase, p.Status.Conditions = corev1.PodRunning, ready
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: running, Ready: true, RestartCount: 3}}
		}, "1/1 Running 3"},
		"crashing": {func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodRunning
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: waiting("CrashLoopBackOff"), RestartCount: 7}}
		}, "0/1 CrashLoopBackOff 7"},
		"completed": {func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodSucceeded
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: ended(0, "Completed")}}
		}, "0/1 Completed 0"},
		"failed by a signal": {func(p *corev1.Pod) {
			p.Status.Phase = corev1.PodFailed
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, Signal: 9}}}}
		}, "0/1 Signal:9 0"},
		"evicted":     {func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodFailed, "Evicted" }, "0/1 Evicted 0"},
		"terminating": {func(p *corev1.Pod) { p.Status.Phase, p.DeletionTimestamp = corev1.PodRunning, &now }, "0/1 Terminating 0"},
		"initialising": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i"}, {Name: "j"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", State: ended(0, "Completed")}, {Name: "j", State: running}}
		}, "0/1 Init:1/2 0"},
		"init failed": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "i", State: ended(1, "Error"), RestartCount: 2}}
		}, "0/1 Init:Error 2"},
		"with a sidecar": {func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "s", RestartPolicy: &always}}
			p.Status.Phase, p.Status.Conditions = corev1.PodRunning, ready
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "s", Started: &yes, Ready: true, State: running, RestartCount: 1}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: running, Ready: true, RestartCount: 2}}
		}, "2/2 Running 3"},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGateway(t, true)
			p := newPod("web", "u1", "1")
			p.DeletionGracePeriodSeconds = nil
			tt.change(p)
			g.deliverObjects(p)
			raw, err := g.newClient(false).CoreV1().RESTClient().Get().Resource("pods").Namespace("default").
				SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(t.Context()).Raw()
			if err != nil {
				t.Fatal(err)
			}
			table := parseJSON(t, string(raw)).(map[string]any)
			cells := table["rows"].([]any)[0].(map[string]any)["cells"].([]any)
			if got := fmt.Sprint(cells[1], " ", cells[2], " ", cells[3]); got != tt.want || !strings.HasPrefix(fmt.Sprint(cells[4]), "5m") {
				t.Errorf("row %q, age %v; want %q", got, cells[4], tt.want)
			}
		})
	}
}

func parseJSON(t *testing.T, s string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%v in %s", err, s)
	}
	return v
}
