package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/cmd/frond/check"
	"github.com/frond-edge/frond/test/kit"
)

// check runs frond check, and returns the status of each check, what it prints and the exit code.
func (i *installedCluster) check(args ...string) (statuses map[string]string, printed string, exitCode int) {
	i.t.Helper()
	code, out, _ := i.runCommand(append([]string{"check", "-o", "json"}, args...)...)
	var o check.Output
	if err := json.Unmarshal([]byte(out), &o); err != nil {
		i.t.Fatalf("%v: %s", err, out)
	}
	statuses = map[string]string{}
	for _, r := range o.Checks {
		statuses[r.ID] = string(r.Status)
	}
	return statuses, out, code
}

func TestCheck_InstallationAndGateways(t *testing.T) {
	i := newInstalledCluster(t)
	if statuses, out, code := i.check(); code != 2 || statuses["installation"] != "fail" || !strings.Contains(out, "not installed") {
		t.Errorf("before frond init: exit code %d, %s", code, out)
	}
	i.mustRun("init", "--hub-url", "tls://hub.example.com:7422")
	statuses, out, code := i.check()
	if code != 0 || statuses["installation"] != "pass" || statuses["hub"] != "skip" || statuses["placement"] != "pass" {
		t.Errorf("after frond init: exit code %d, %s", code, out)
	}

	if err := i.client.RbacV1().ClusterRoles().Delete(t.Context(), "frond-cloudcore", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if statuses, out, code := i.check(); code != 2 || statuses["installation"] != "fail" || !strings.Contains(out, "ClusterRole/frond-cloudcore") {
		t.Errorf("without cloudcore's rights: exit code %d, %s", code, out)
	}
	i.mustRun("init")

	node, err := i.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "gw-", Labels: map[string]string{names.LabelEdge: ""}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name := node.Name
	t.Cleanup(func() {
		kit.Must(t, i.client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}))
	})
	node.Status.Conditions = []corev1.NodeCondition{{Type: names.ConditionStorage, Status: corev1.ConditionFalse, Reason: names.ReasonDiskFull}}
	if _, err := i.client.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	failed, text, stderr := i.runCommand("check")
	if failed != 2 || !strings.Contains(text, node.Name+" (DiskFull)") || !strings.Contains(stderr, "failed: disks") {
		t.Errorf("a full disk: exit code %d, %s%s", failed, text, stderr)
	}
}

func TestCheck_BeforeAnInstallation(t *testing.T) {
	i := newInstalledCluster(t)
	statuses, out, code := i.check("--pre") // this control plane has no Nodes and no StorageClass
	if code != 2 || statuses["rights"] != "pass" || statuses["room"] != "fail" || statuses["storage"] != "warn" || statuses["kubeedge"] != "pass" {
		t.Errorf("exit code %d, %s", code, out)
	}
	if statuses, out, code := i.check("--pre", "--as", "somebody"); code != 2 || statuses["rights"] != "fail" || statuses["room"] != "unknown" {
		t.Errorf("as a user without rights: exit code %d, %s", code, out)
	}
}
