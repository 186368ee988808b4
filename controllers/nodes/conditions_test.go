package nodes_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers/nodes"
	"github.com/frond-edge/frond/test/kit"
)

func TestWantProgress_ReportsDelays(t *testing.T) {
	now := time.Unix(100_000, 0)
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	behind := func(seconds int) nodes.Progress { return nodes.Progress{Loaded: true, Behind: 3, Oldest: ago(seconds)} }
	long, never := ago(10_000), time.Time{}
	type input struct {
		connected, lost bool
		progress        nodes.Progress
		joined, told    time.Time
		was             string
	}
	for name, tt := range map[string]struct {
		in   input
		want string
	}{
		"not heard yet":                         {input{progress: behind(99)}, " "},
		"what is held is not known":             {input{connected: true, progress: nodes.Progress{Behind: 3, Oldest: long}, joined: long}, " "},
		"all applied":                           {input{connected: true, progress: completeProgress(), joined: long}, "True AllApplied"},
		"all applied after a cut":               {input{connected: true, progress: completeProgress(), joined: ago(1), told: ago(1), was: "Unknown NotConnected"}, "True AllApplied"},
		"a change on its way":                   {input{connected: true, progress: behind(5), joined: long, was: "True AllApplied"}, "True AllApplied"},
		"a change on its way to a new node":     {input{connected: true, progress: behind(5), joined: long}, " "},
		"a change that waits":                   {input{connected: true, progress: behind(30), joined: long, told: long, was: "True AllApplied"}, "False Behind"},
		"a change that waits, told just before": {input{connected: true, progress: behind(30), joined: long, told: ago(29), was: "True AllApplied"}, "True AllApplied"},
		"what waited for the link":              {input{connected: true, progress: behind(9999), joined: ago(29), was: "Unknown NotConnected"}, "Unknown NotConnected"},
		"and waits on":                          {input{connected: true, progress: behind(9999), joined: ago(30), was: "Unknown NotConnected"}, "False Behind"},
		"caught up":                             {input{connected: true, progress: completeProgress(), joined: long, told: ago(30), was: "False Behind"}, "True AllApplied"},
		"caught up, told just before":           {input{connected: true, progress: completeProgress(), joined: long, told: ago(29), was: "False Behind"}, "False Behind"},
		"nearly caught up":                      {input{connected: true, progress: behind(10), joined: long, told: long, was: "False Behind"}, "False Behind"},
		"caught up with what is changed always": {input{connected: true, progress: behind(9), joined: long, told: long, was: "False Behind"}, "True AllApplied"},
		"cut off":                               {input{lost: true, progress: behind(1), told: ago(1), was: "True AllApplied"}, "Unknown NotConnected"},
		"cut off while behind":                  {input{lost: true, progress: behind(99), told: ago(1), was: "False Behind"}, "Unknown NotConnected"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.in.told.IsZero() {
				tt.in.told = never
			}
			status, reason, _ := strings.Cut(tt.in.was, " ")
			gotStatus, gotReason := nodes.WantProgress(tt.in.connected, tt.in.lost, tt.in.progress, tt.in.joined, tt.in.told, now, corev1.ConditionStatus(status), reason)
			if got := string(gotStatus) + " " + gotReason; got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// upToDateCondition is the condition of the node.
func (w *monitorEnv) upToDateCondition() (corev1.NodeCondition, error) {
	node, err := w.client.CoreV1().Nodes().Get(w.Context(), w.name, metav1.GetOptions{})
	if err != nil {
		return corev1.NodeCondition{}, err
	}
	for _, c := range node.Status.Conditions {
		if c.Type == names.ConditionUpToDate {
			return c, nil
		}
	}
	return corev1.NodeCondition{}, errors.New("no condition")
}

// eventuallyUpToDate sends heartbeats with a progress until the condition has this state.
func (w *monitorEnv) eventuallyUpToDate(m *nodes.Monitor, p func() nodes.Progress, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
	w.Helper()
	var c corev1.NodeCondition
	kit.Succeeds(w, 30*time.Second, func() (err error) {
		if p != nil {
			m.RecordHeartbeat(w.name, wire.Heartbeat{Healthy: true}, p)
		}
		if c, err = w.upToDateCondition(); err == nil && (c.Status != status || c.Reason != reason) {
			return fmt.Errorf("%s %s", c.Status, c.Reason)
		}
		return err
	})
	return c
}

// TestMonitor_MaintainsUpToDate takes a node through all states of the condition. Deliveries in transit cause no write.
func TestMonitor_MaintainsUpToDate(t *testing.T) {
	w := newMonitorEnv(t)
	w.createNode()
	registry := prometheus.NewRegistry()
	m := w.startMonitorWith(newFakeOwner(true), registry, func(m *nodes.Monitor) {
		m.ShortenTimes(time.Minute, 3*time.Second)
		m.ShortenProgressTimes(2*time.Second, time.Second, time.Second)
	})
	w.eventuallyUpToDate(m, completeProgress, corev1.ConditionTrue, "AllApplied")
	before, err := testutil.GatherAndCount(registry, "frond_nodes_writes_total")
	if err != nil || before == 0 {
		t.Fatal(before, err)
	}
	told, err := w.upToDateCondition()
	if err != nil {
		t.Fatal(err)
	}

	// 50 deliveries, each seen under way and then done.
	underway := func() nodes.Progress { return nodes.Progress{Loaded: true, Behind: 1, Oldest: time.Now()} }
	for range 50 {
		m.RecordHeartbeat(w.name, wire.Heartbeat{Healthy: true}, underway)
		m.RecordHeartbeat(w.name, wire.Heartbeat{Healthy: true}, completeProgress)
	}
	stuck := time.Now()
	behind := func() nodes.Progress { return nodes.Progress{Loaded: true, Behind: 12, Oldest: stuck} }
	m.RecordHeartbeat(w.name, wire.Heartbeat{Healthy: true}, behind)
	if now, err := w.upToDateCondition(); err != nil || !now.LastHeartbeatTime.Equal(&told.LastHeartbeatTime) || now.Status != corev1.ConditionTrue {
		t.Errorf("deliveries wrote the condition: %+v, %v", now, err)
	}
	c := w.eventuallyUpToDate(m, behind, corev1.ConditionFalse, "Behind")
	if !strings.Contains(c.Message, "12 changes") || !strings.Contains(c.Message, stuck.UTC().Format(time.RFC3339)) {
		t.Errorf("message %q", c.Message)
	}
	problems, err := testutil.GatherAndLint(registry, "frond_behind_nodes", "frond_behind_objects", "frond_behind_oldest_seconds", "frond_connected_nodes")
	if err != nil || len(problems) != 0 {
		t.Error(problems, err)
	}
	expect := "# HELP frond_behind_objects Changes that connected nodes lack.\n# TYPE frond_behind_objects gauge\nfrond_behind_objects 12\n"
	if err := testutil.GatherAndCompare(registry, strings.NewReader(expect), "frond_behind_objects"); err != nil {
		t.Error(err)
	}
	w.eventuallyUpToDate(m, completeProgress, corev1.ConditionTrue, "AllApplied")
	w.eventuallyUpToDate(m, nil, corev1.ConditionUnknown, "NotConnected") // silent
	w.eventuallyUpToDate(m, completeProgress, corev1.ConditionTrue, "AllApplied")
	for _, reason := range []string{"EdgeBehind", "EdgeUpToDate", "EdgeDisconnected", "EdgeConnected"} {
		kit.Succeeds(t, 30*time.Second, func() error {
			list, err := w.client.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + w.name + ",reason=" + reason})
			if err == nil && len(list.Items) != 1 {
				return fmt.Errorf("%d events of reason %s", len(list.Items), reason)
			}
			return err
		})
	}
}

// hasLinkMessage returns a check that the condition of the link has these words.
func (w *monitorEnv) hasLinkMessage(reason, words string) func() error {
	return func() error {
		node, err := w.client.CoreV1().Nodes().Get(w.Context(), w.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range node.Status.Conditions {
			if c.Type == names.ConditionConnected && (c.Reason != reason || !strings.Contains(c.Message, words)) {
				return fmt.Errorf("%s: %s", c.Reason, c.Message)
			}
		}
		return nil
	}
}

// TestMonitor_ReportsAutonomyOfLostNode changes the source of the autonomy of a silent node. A new owner continues with
// it, and keeps it while it does not know the groups.
func TestMonitor_ReportsAutonomyOfLostNode(t *testing.T) {
	const limit = time.Minute
	w, o := newMonitorEnv(t), newFakeOwner(true)
	w.createNode()
	o.setAutonomy("")
	m := w.startMonitor(o)
	w.beatUntil(m, true, w.hasConnected(corev1.ConditionTrue, "HeartbeatsArrive"))
	kit.Succeeds(t, limit, w.hasLinkMessage("NoHeartbeat", "as for any unreachable node"))
	w.annotateNode(`"12h"`)
	kit.Succeeds(t, limit, w.hasLinkMessage("Autonomous", "(frond.io/autonomy: 12h)"))
	w.annotateNode("null")
	kit.Succeeds(t, limit, w.hasLinkMessage("NoHeartbeat", "as for any unreachable node"))
	for _, value := range []string{"24h", "forever"} {
		o.setAutonomy(value)
		m.EnqueueIfLost(w.name)
		kit.Succeeds(t, limit, w.hasLinkMessage("Autonomous", "(frond.io/autonomy: "+value+" of NodeGroup north)"))
	}
	o.toggleOwnership()
	next := newFakeOwner(true)
	m = w.startMonitor(next)
	w.annotateNode(`"1h"`) // a change that shows that the owner is working
	kit.Succeeds(t, limit, w.hasLinkMessage("Autonomous", "(frond.io/autonomy: 1h)"))
	w.annotateNode("null")
	m.EnqueueIfLost(w.name)
	if err := w.hasLinkMessage("Autonomous", "")(); err != nil {
		t.Error(err)
	}
	next.setAutonomy("")
	kit.Succeeds(t, limit, func() error {
		m.EnqueueIfLost(w.name)
		return w.hasLinkMessage("NoHeartbeat", "as for any unreachable node")()
	})
}

// annotateNode sets the Node's annotation to a JSON value.
func (w *monitorEnv) annotateNode(value string) {
	w.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, names.AnnotationAutonomy, value)
	if _, err := w.client.CoreV1().Nodes().Patch(w.Context(), w.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.Fatal(err)
	}
}
