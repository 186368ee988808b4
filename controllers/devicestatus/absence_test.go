package devicestatus_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/controllers/devicestatus"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// startAbsence starts an Absence that owns all nodes.
func (e *env) startAbsence() {
	e.Helper()
	statuses, err := devicestatus.NewStatuses(e.user, false)
	kit.Must(e, err)
	streamstest.StartPart(e.T, statuses.Start)
	streamstest.StartPart(e.T, devicestatus.NewFastAbsence(e.applier, e.objects, statuses, owner{}, zaptest.NewLogger(e)).Start)
}

// awaitState waits until a device has a state, and returns the extensions then.
func (e *env) awaitState(name, want string) (extensions string) {
	e.Helper()
	kubetest.Eventually(e, time.Minute, func() error {
		s := e.status(name)
		if s == nil || s.Status.State != want {
			return fmt.Errorf("status of %s is %+v, want the state %q", name, s, want)
		}
		if s.Status.Extensions != nil {
			extensions = string(s.Status.Extensions.Raw)
		}
		return nil
	})
	return extensions
}

// While a gateway is away the state of its devices is unknown; what it reports when it is back replaces that.
func TestAbsence_MarksDevices(t *testing.T) {
	e := newEnv(t)
	node, present := "edge-"+e.ns, "present-"+e.ns
	uid, other := e.createDevice("a", node), e.createDevice("b", present)
	e.setConnected(node, corev1.ConditionTrue)
	e.setConnected(present, corev1.ConditionTrue)
	kit.Must(t, e.report(node, "a", uid, ok))
	kit.Must(t, e.report(present, "b", other, ok))
	e.startAbsence()
	e.setConnected(node, corev1.ConditionFalse)
	extensions := e.awaitState("a", "unknown")
	if s := e.status("a"); len(s.Status.Twins) != 1 || s.Status.Twins[0].Reported.Value != "1" || !strings.Contains(extensions, `"before":"ok"`) || !strings.Contains(extensions, `"conditions"`) {
		t.Errorf("status %+v %s", s.Status, extensions)
	}
	e.setConnected(node, corev1.ConditionTrue)
	kubetest.Eventually(t, time.Minute, func() error { // until the cache knows that it is back
		kit.Must(t, e.report(node, "a", uid, ok))
		if s := e.status("a"); s.Status.State != "ok" {
			return fmt.Errorf("status %+v", s.Status)
		}
		return nil
	})
	e.setConnected(node, corev1.ConditionUnknown)
	e.awaitState("a", "unknown")
	e.awaitState("b", "ok")
}

// A device that has never told a state, and one that itself says "unknown", do not look current while their gateway is away.
func TestAbsence_MarksDevicesWithoutAState(t *testing.T) {
	e := newEnv(t)
	node := "edge-" + e.ns
	uid, unsure := e.createDevice("a", node), e.createDevice("b", node)
	e.setConnected(node, corev1.ConditionFalse)
	kit.Must(t, e.report(node, "a", uid, `{"twins":[{"propertyName":"t","reported":{"value":"1"}}]}`))
	kit.Must(t, e.report(node, "b", unsure, `{"state":"unknown"}`))
	e.startAbsence()
	if extensions := e.awaitState("a", "unknown"); strings.Contains(extensions, "before") || !strings.Contains(extensions, `"since":"2`) {
		t.Errorf("extensions %s", extensions)
	}
	kubetest.Eventually(t, time.Minute, func() error {
		if extensions := e.awaitState("b", "unknown"); !strings.Contains(extensions, "GatewayNotConnected") {
			return fmt.Errorf("extensions %s", extensions)
		}
		return nil
	})
}

// What a gateway had sent before it went away, and a device that moves to one that is away, change nothing of that.
func TestAbsence_MarksLateReportsAndMovedDevices(t *testing.T) {
	e := newEnv(t)
	node, present := "edge-"+e.ns, "present-"+e.ns
	uid, moved := e.createDevice("a", node), e.createDevice("b", present)
	e.setConnected(node, corev1.ConditionFalse)
	e.setConnected(present, corev1.ConditionTrue)
	kit.Must(t, e.report(node, "a", uid, ok))
	kit.Must(t, e.report(present, "b", moved, ok))
	e.startAbsence()
	e.awaitState("a", "unknown")
	kit.Must(t, e.report(node, "a", uid, `{"state":"late"}`))
	if extensions := e.awaitState("a", "unknown"); !strings.Contains(extensions, `"before":"late"`) {
		t.Errorf("extensions %s", extensions)
	}
	e.move("b", node)
	e.awaitState("b", "unknown")
}

// The devices of a Node that was deleted are unknown, too.
func TestAbsence_MarksDevicesOfDeletedNodes(t *testing.T) {
	e := newEnv(t)
	node := "edge-" + e.ns
	uid := e.createDevice("a", node)
	nodes := e.cluster.Client(t).CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}}, metav1.CreateOptions{})
	kit.Must(t, err)
	kit.Must(t, e.report(node, "a", uid, ok))
	e.startAbsence()
	kit.Must(t, nodes.Delete(t.Context(), node, metav1.DeleteOptions{}))
	if extensions := e.awaitState("a", "unknown"); !strings.Contains(extensions, "NodeMissing") {
		t.Errorf("extensions %s", extensions)
	}
}

// A gateway whose link was up all the time, while nobody heard its heartbeats, reports nothing when it is heard again.
func TestAbsence_RestoresTheStateOfBefore(t *testing.T) {
	e := newEnv(t)
	node := "edge-" + e.ns
	uid, silent := e.createDevice("a", node), e.createDevice("b", node)
	e.setConnected(node, corev1.ConditionUnknown)
	kit.Must(t, e.report(node, "a", uid, ok))
	kit.Must(t, e.report(node, "b", silent, `{}`))
	e.startAbsence()
	e.awaitState("a", "unknown")
	e.awaitState("b", "unknown")
	e.setConnected(node, corev1.ConditionTrue)
	if extensions := e.awaitState("a", "ok"); strings.Contains(extensions, "GatewayNotConnected") || !strings.Contains(extensions, "conditions") {
		t.Errorf("extensions %s", extensions)
	}
	e.awaitState("b", "")
}
