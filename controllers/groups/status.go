package groups

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/groups/assignment"
)

// maxSampleNames is how many Nodes a message lists.
const maxSampleNames = 5

// groupState is what the status of a group says.
type groupState struct {
	assigned assignment.Assignment
	// node returns a Node, nil if there is none.
	node func(name string) *corev1.Node
	// hold is why evictions wait; its zero value: they do not.
	hold hold
	// windowFault is why the maintenance windows cannot be parsed; nil if they can.
	windowFault error
}

// hold is why pods that should be evicted stay.
type hold struct{ reason, message string }

// statusOf returns the status of a group. Conditions that do not change keep their times.
func statusOf(g *apps.NodeGroup, s groupState, now time.Time) apps.NodeGroupStatus {
	next := apps.NodeGroupStatus{ObservedGeneration: g.Generation, NodeStatuses: nodeStatuses(g, s)}
	var failed []string
	for _, n := range next.NodeStatuses {
		next.Selected++
		if n.SelectionStatus != apps.SelectionSucceeded {
			failed = append(failed, n.NodeName+": "+n.SelectionStatusReason)
			continue
		}
		next.Members++
		if n.ReadyStatus == apps.NodeReady {
			next.Ready++
		}
	}
	next.Conditions = slices.Clone(g.Status.Conditions)
	set := func(kind string, holds bool, reason, message string) {
		status := metav1.ConditionFalse
		if holds {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&next.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: g.Generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
		})
	}
	reason, message := specFault(g)
	set(names.ConditionSpecAccepted, message == "", reason, message)
	if len(failed) == 0 {
		set(names.ConditionAllSelected, true, names.ReasonAllMembers, "")
	} else {
		set(names.ConditionAllSelected, false, names.ReasonNodesNotSelected, listSample(failed, "; "))
	}
	if s.hold.reason == "" {
		set(names.ConditionEvictionsHeld, false, names.ReasonNothingHeld, "")
	} else {
		set(names.ConditionEvictionsHeld, true, s.hold.reason, s.hold.message)
		if s.hold.reason == names.ReasonMassLeave && currentHold(g) != s.hold { // the guard's time is that of this very hold
			meta.FindStatusCondition(next.Conditions, names.ConditionEvictionsHeld).LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		}
	}
	switch _, annotated := g.Annotations[names.AnnotationMaintenanceWindows]; {
	case !annotated:
		meta.RemoveStatusCondition(&next.Conditions, names.ConditionWindowsParsed)
	case s.windowFault != nil:
		set(names.ConditionWindowsParsed, false, names.ReasonNotParsed, s.windowFault.Error()+": no update is released until it is corrected")
	default:
		set(names.ConditionWindowsParsed, true, names.ReasonParsed, "")
	}
	return next
}

// nodeStatuses lists the Nodes that a group asks for, by name.
func nodeStatuses(g *apps.NodeGroup, s groupState) []apps.NodeStatus {
	var all []apps.NodeStatus
	for _, name := range s.assigned.Members(g.Name) {
		status := apps.NodeStatus{NodeName: name, ReadyStatus: readyStatus(s.node(name)), SelectionStatus: apps.SelectionSucceeded}
		if node := s.node(name); node != nil && g.Spec.TopologyEnabled {
			if zone := foreignZone(node, g.Name); zone != "" {
				status.SelectionStatusReason = fmt.Sprintf("node %s keeps its zone %s, which is not the group's", name, zone)
			}
		}
		all = append(all, status)
	}
	for _, c := range s.assigned.Conflicts(g.Name) {
		all = append(all, apps.NodeStatus{
			NodeName: c.Node, ReadyStatus: readyStatus(s.node(c.Node)), SelectionStatus: apps.SelectionFailed,
			SelectionStatusReason: fmt.Sprintf("node %s has already belonged to NodeGroup %s", c.Node, c.Holder), // KubeEdge's words, which scripts may look for
		})
	}
	for _, name := range s.assigned.Missing(g.Name) {
		all = append(all, apps.NodeStatus{
			NodeName: name, ReadyStatus: apps.NodeUnknown, SelectionStatus: apps.SelectionFailed, SelectionStatusReason: "node does not exist",
		})
	}
	slices.SortFunc(all, func(a, b apps.NodeStatus) int { return strings.Compare(a.NodeName, b.NodeName) })
	return all
}

// readyStatus returns what a NodeGroup says of a Node's condition Ready.
func readyStatus(node *corev1.Node) string {
	if node == nil {
		return apps.NodeUnknown
	}
	for _, c := range node.Status.Conditions {
		if c.Type != corev1.NodeReady {
			continue
		}
		switch c.Status {
		case corev1.ConditionTrue:
			return apps.NodeReady
		case corev1.ConditionFalse:
			return apps.NodeNotReady
		case corev1.ConditionUnknown:
		}
	}
	return apps.NodeUnknown
}

// specFault returns the reason and message of names.ConditionSpecAccepted; the message is empty if all is accepted.
func specFault(g *apps.NodeGroup) (reason, message string) {
	if untrusted := assignment.GroupOf(g).UntrustedLabels(); len(untrusted) > 0 {
		return names.ReasonUntrustedLabels, fmt.Sprintf("matchLabels selects no Node: a gateway sets %s in its own Node, or cloudcore does for its group. Use a label of your own, or list the nodes",
			listSample(untrusted, ", "))
	}
	if !validLabelValue(g.Name) {
		return names.ReasonNameTooLong, fmt.Sprintf("the members get no label %s: the name of the group is no value of a label, which has 63 characters at most", names.LabelNodeGroup)
	}
	return names.ReasonAccepted, ""
}

func listSample(all []string, separator string) string {
	if more := len(all) - maxSampleNames; more > 0 {
		return strings.Join(all[:maxSampleNames], separator) + fmt.Sprintf("%sand %d more", separator, more)
	}
	return strings.Join(all, separator)
}

// statusEvent is a Warning event about a condition that became what it should not be.
type statusEvent struct{ reason, message string }

// statusEvents returns the events of a change of the status.
func statusEvents(before, after []metav1.Condition) []statusEvent {
	var events []statusEvent
	for _, w := range []struct {
		kind  string
		fault metav1.ConditionStatus
		event string
	}{
		{names.ConditionSpecAccepted, metav1.ConditionFalse, names.EventGroupSpecNotAccepted},
		{names.ConditionAllSelected, metav1.ConditionFalse, names.EventNodesNotSelected},
		{names.ConditionEvictionsHeld, metav1.ConditionTrue, names.EventEvictionsHeld},
		{names.ConditionWindowsParsed, metav1.ConditionFalse, names.EventWindowsNotParsed},
	} {
		is := meta.FindStatusCondition(after, w.kind)
		if is != nil && is.Status == w.fault && !meta.IsStatusConditionPresentAndEqual(before, w.kind, w.fault) {
			events = append(events, statusEvent{w.event, is.Message})
		}
	}
	return events
}

func sameStatus(a, b apps.NodeGroupStatus) bool { return apiequality.Semantic.DeepEqual(a, b) }
