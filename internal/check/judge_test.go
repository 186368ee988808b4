package check

import (
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install"
)

func wantResult(t *testing.T, got Result, status Status, message string, objects ...string) {
	t.Helper()
	if got.Status != status || !strings.Contains(got.Message, message) || strings.Join(got.Objects, ",") != strings.Join(objects, ",") {
		t.Errorf("%+v, want %s with %q about %q", got, status, message, objects)
	}
	if (got.Status == Warn || got.Status == Fail) && got.Fix == "" {
		t.Errorf("%s says not what to do", got.Message)
	}
}

func gateway(name string, conditions ...corev1.NodeCondition) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.LabelEdge: ""}}, Status: corev1.NodeStatus{Conditions: conditions},
	}
}

func condition(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
	return corev1.NodeCondition{Type: kind, Status: status, Reason: reason}
}

func TestJudge_Workloads(t *testing.T) {
	hub := func(ready int32) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{Status: appsv1.StatefulSetStatus{ReadyReplicas: ready}}
	}
	wantResult(t, judgeHub(nil, 3), Skip, "elsewhere")
	wantResult(t, judgeHub(hub(3), 3), Pass, "3 of 3")
	wantResult(t, judgeHub(hub(2), 3), Warn, "another one that stops")
	wantResult(t, judgeHub(hub(1), 3), Fail, "no majority")
	wantResult(t, judgeHub(hub(1), 1), Pass, "1 of 1")

	cloudcore := func(want, ready int32) *appsv1.Deployment {
		return &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Replicas: &want}, Status: appsv1.DeploymentStatus{ReadyReplicas: ready}}
	}
	wantResult(t, judgeCloudcore(nil), Skip, "elsewhere")
	wantResult(t, judgeCloudcore(cloudcore(2, 2)), Pass, "2 of 2")
	wantResult(t, judgeCloudcore(cloudcore(2, 1)), Warn, "1 of 2")
	wantResult(t, judgeCloudcore(cloudcore(2, 0)), Fail, "none of 2")
	wantResult(t, judgeCloudcore(cloudcore(1, 1)), Warn, "one replica")
}

func TestJudge_Installation(t *testing.T) {
	wantResult(t, judgeInstallation(install.Report{Objects: []install.Applied{{Kind: "Secret", Namespace: "frond-system", Name: "a", Action: "unchanged"}}}), Pass, "all 1")
	wantResult(t, judgeInstallation(install.Report{Objects: []install.Applied{
		{Kind: "Secret", Namespace: "frond-system", Name: "a", Action: "unchanged"},
		{Kind: "ClusterRole", Name: "frond-cloudcore", Action: "configured"},
		{Kind: "Secret", Namespace: "frond-system", Name: "b", Action: "created"},
	}}), Fail, "2 of 3", "ClusterRole/frond-cloudcore", "frond-system/Secret/b")
	wantResult(t, judgeWarnings(install.Report{}), Pass, "nothing")
	wantResult(t, judgeWarnings(install.Report{Warnings: []string{"no backup:\n  frond backup create"}}), Warn, "no backup:   frond backup create")
}

func TestJudge_Gateways(t *testing.T) {
	checks := map[string]conditionCheck{}
	for _, c := range gatewayChecks() {
		checks[c.ID] = c.condition
	}
	links := checks["links"]
	wantResult(t, links.countUnhealthy(nil), Skip, "no gateways")
	wantResult(t, links.countUnhealthy([]corev1.Node{gateway("gw-1", condition(names.ConditionConnected, corev1.ConditionTrue, "HeartbeatsArrive"))}), Pass, "all 1")
	wantResult(t, links.countUnhealthy([]corev1.Node{
		gateway("gw-2", condition(names.ConditionConnected, corev1.ConditionFalse, "NoHeartbeat")),
		gateway("gw-1", condition(names.ConditionConnected, corev1.ConditionTrue, "HeartbeatsArrive")),
		gateway("gw-0", condition(names.ConditionConnected, corev1.ConditionFalse, "Revoked")),
	}), Warn, "2 of 3", "gw-0 (Revoked)", "gw-2 (NoHeartbeat)")
	wantResult(t, links.countUnhealthy([]corev1.Node{gateway("gw-1"), gateway("gw-2", condition(names.ConditionConnected, corev1.ConditionUnknown, "NotHeard"))}),
		Warn, "2 of 2", "gw-1 (NotReported)", "gw-2 (NotHeard)")
	linked := condition(names.ConditionConnected, corev1.ConditionTrue, "HeartbeatsArrive")
	wantResult(t, checks["kubelets"].countUnhealthy([]corev1.Node{
		gateway("gw-1", condition(corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown")),
		gateway("gw-2", linked, condition(corev1.NodeReady, corev1.ConditionUnknown, "NodeStatusUnknown")),
		gateway("gw-3", linked),
	}), Warn, "2 of 3", "gw-2 (NodeStatusUnknown)", "gw-3 (NotReported)")
	wantResult(t, checks["held-deletions"].countUnhealthy([]corev1.Node{gateway("gw-1", condition(names.ConditionDeletionsHeld, corev1.ConditionTrue, "MassDelete"))}),
		Warn, "wait for you", "gw-1 (MassDelete)")
	wantResult(t, checks["disks"].countUnhealthy([]corev1.Node{gateway("gw-1", condition(names.ConditionStorage, corev1.ConditionFalse, "DiskFull"))}),
		Fail, "full disk", "gw-1 (DiskFull)")

	many := make([]corev1.Node, 0, 3*MaxObjects)
	for range cap(many) {
		many = append(many, gateway("gw", condition(names.ConditionConnected, corev1.ConditionFalse, "NoHeartbeat")))
	}
	if r := links.countUnhealthy(many); len(r.Objects) != MaxObjects || !strings.Contains(r.Message, "30 of 30") {
		t.Errorf("%d objects, %s", len(r.Objects), r.Message)
	}
}

func TestJudge_DaemonSets(t *testing.T) {
	now := time.Now()
	pod := func(node string, age time.Duration, ready corev1.ConditionStatus) corev1.Pod {
		yes := true
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "kube-system", Name: "x", CreationTimestamp: metav1.NewTime(now.Add(-age)),
				OwnerReferences: []metav1.OwnerReference{{Kind: "DaemonSet", Name: "csi", Controller: &yes}},
			},
			Spec:   corev1.PodSpec{NodeName: node},
			Status: corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
		}
	}
	down := withoutLink([]corev1.Node{
		gateway("gw-1", condition(names.ConditionConnected, corev1.ConditionTrue, "HeartbeatsArrive")),
		gateway("gw-2", condition(names.ConditionConnected, corev1.ConditionFalse, "NoHeartbeat")),
		gateway("gw-3"),
	})
	wantResult(t, judgeDaemonSets([]corev1.Pod{
		pod("gw-1", time.Hour, corev1.ConditionTrue), pod("gw-1", time.Minute, corev1.ConditionFalse),
		pod("gw-2", time.Hour, corev1.ConditionFalse), pod("gw-3", time.Hour, corev1.ConditionFalse),
	}, down, now), Pass, "run")
	wantResult(t, judgeDaemonSets([]corev1.Pod{pod("gw-1", time.Hour, corev1.ConditionFalse), pod("gw-1", time.Hour, corev1.ConditionUnknown)}, down, now),
		Warn, "1 DaemonSets", "kube-system/csi (2 pods)")
}

func TestJudge_Before(t *testing.T) {
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	tainted, soft := node, node
	tainted.Spec.Taints = []corev1.Taint{{Key: "control-plane", Effect: corev1.TaintEffectNoSchedule}}
	soft.Spec.Taints = []corev1.Taint{{Key: "control-plane", Effect: corev1.TaintEffectPreferNoSchedule}}
	cordoned := node
	cordoned.Spec.Unschedulable = true
	wantResult(t, judgeRoom([]corev1.Node{node, node, soft}, 3), Pass, "3 Nodes")
	wantResult(t, judgeRoom([]corev1.Node{node, node, gateway("gw-1"), tainted, cordoned}, 3), Fail, "2 Nodes")

	plain, usual := storagev1.StorageClass{}, storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast", Annotations: map[string]string{defaultClass: "true"}}}
	wantResult(t, judgeStorage([]storagev1.StorageClass{plain, usual}), Pass, "fast")
	wantResult(t, judgeStorage([]storagev1.StorageClass{plain}), Warn, "none of 1")
	wantResult(t, judgeStorage(nil), Warn, "none of 0")

	wantResult(t, judgeRights(nil, 10), Pass, "10 rights")
	wantResult(t, judgeRights([]string{right{"create", "", "secrets", "frond-system"}.String()}, 10), Fail, "1 of 10", "create secrets -n frond-system")
	wantResult(t, judgeKubeEdge(true), Warn, "KubeEdge")
	wantResult(t, judgeKubeEdge(false), Pass, "not installed")
	wantResult(t, judgeVersion("v1.37.1"), Pass, "1.37")
	wantResult(t, judgeVersion("v1.20.0"), Warn, "1.20")
}

func TestJudge_Placement(t *testing.T) {
	pods := []corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "frond-hub-0"}, Spec: corev1.PodSpec{NodeName: "gw-1"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "frond-hub-1"}, Spec: corev1.PodSpec{NodeName: "n"}},
	}
	wantResult(t, judgePlacement(pods, map[string]bool{"gw-1": true}), Fail, "1 pods", "frond-hub-0 on gw-1")
	wantResult(t, judgePlacement(pods, nil), Pass, "no pod")
}

func TestWorst(t *testing.T) {
	for want, statuses := range map[Status][]Status{
		Pass: {Pass, Skip}, Warn: {Pass, Warn, Skip}, Unknown: {Warn, Unknown}, Fail: {Warn, Fail, Unknown},
	} {
		var results []Result
		for _, s := range statuses {
			results = append(results, Result{Status: s})
		}
		if got := Worst(results); got != want {
			t.Errorf("%v: %s, want %s", statuses, got, want)
		}
	}
}
