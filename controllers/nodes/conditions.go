package nodes

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/names"
)

const (
	// behindAfter is how long a change must have waited at a connected node: a change in transit is no fault.
	behindAfter = 30 * time.Second
	// caughtUpWithin is the maximum age of the oldest waiting change for a node that was behind to be up to date again.
	// A node that changes continuously always has a change in transit.
	caughtUpWithin = behindAfter / 3
	// changeEvery is the minimum time between two changes of UpToDate while the link state is unchanged.
	changeEvery = 30 * time.Second
)

// Progress is how far a node has applied its desired state, as known to the replica that publishes for it.
type Progress struct {
	// Loaded is false until that replica has read what the stream holds.
	Loaded bool
	// Behind is the number of changes that are not on the node's disk; Oldest is when the cloud saw the first of them.
	Behind int
	Oldest time.Time
}

// Autonomy returns how long the pods of a Node stay while it is unreachable, as an annotation specifies, and the
// NodeGroup with that annotation, "" being the Node itself. An empty value is the Kubernetes default; known is false
// while that cannot be determined yet. Calls may be concurrent and must not block.
type Autonomy func(node *corev1.Node) (value, group string, known bool)

// conditionState is the status and reason of a condition.
type conditionState struct {
	status corev1.ConditionStatus
	reason string
}

// stateOf returns the present state of a condition; the zero state if the Node has none of that type.
func stateOf(object *corev1.Node, kind corev1.NodeConditionType) conditionState {
	c := conditionOf(object, kind)
	return conditionState{c.Status, c.Reason}
}

func conditionOf(object *corev1.Node, kind corev1.NodeConditionType) corev1.NodeCondition {
	for _, c := range object.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// wantLink returns the wanted state of Connected; the zero state while it is too early to tell. A revoked node has no
// link, or not for long.
func (n *nodeHealth) wantLink(revoked bool) conditionState {
	switch {
	case revoked:
		return conditionState{corev1.ConditionFalse, names.ReasonRevoked}
	case n.connected && n.healthy:
		return conditionState{corev1.ConditionTrue, names.ReasonHeartbeatsArrive}
	case n.connected:
		return conditionState{corev1.ConditionTrue, names.ReasonKubeletUnwell}
	case n.lost:
		return conditionState{corev1.ConditionFalse, names.ReasonNoHeartbeat}
	}
	return conditionState{}
}

// wantProgress returns the wanted state of UpToDate, given its present state (was). It returns was if nothing has to change.
func (n *nodeHealth) wantProgress(was conditionState, pace conditionTiming, now time.Time) conditionState {
	p := n.progress
	var want conditionState
	switch {
	case n.lost:
		return conditionState{corev1.ConditionUnknown, names.ReasonNotConnected}
	case !n.connected || !p.Loaded:
		return was
	case p.Behind == 0:
		want = conditionState{corev1.ConditionTrue, names.ReasonAllApplied}
	default:
		since := p.Oldest
		if n.connectedAt.After(since) {
			since = n.connectedAt // time spent waiting for the link does not count as time at the node
		}
		switch waited := now.Sub(since); {
		case waited >= pace.behindAfter:
			want = conditionState{corev1.ConditionFalse, names.ReasonBehind}
		case was.status == corev1.ConditionFalse && waited < pace.caughtUpWithin:
			want = conditionState{corev1.ConditionTrue, names.ReasonAllApplied}
		default:
			return was
		}
	}
	if was.status != corev1.ConditionUnknown && now.Sub(n.progressWritten) < pace.changeEvery {
		return was
	}
	return want
}

// conditionTiming holds the timing constants, or other values in tests.
type conditionTiming struct{ behindAfter, caughtUpWithin, changeEvery time.Duration }

// conditionEvaluator decides which conditions a Node should have.
type conditionEvaluator struct {
	revoked func(node string) bool
	// autonomy returns what happens to the pods of a lost node.
	autonomy Autonomy
	// version returns the version of the Kubernetes API, "" while it is not known.
	version func() string
	timing  conditionTiming
}

// conditionChanges returns the conditions that differ from their wanted state. The caller has its own copy of n, or
// holds Monitor.mu.
func (e *conditionEvaluator) conditionChanges(n *nodeHealth, object *corev1.Node, now time.Time) []conditionChange {
	var list []conditionChange
	add := func(kind corev1.NodeConditionType, want conditionState, message string) {
		if was := stateOf(object, kind); want != (conditionState{}) && want != was {
			list = append(list, conditionChange{kind: kind, want: want, was: was, message: message})
		}
	}
	link, message := e.linkState(n, object)
	if was := conditionOf(object, names.ConditionConnected); link.reason == names.ReasonAutonomous && link == stateOf(object, names.ConditionConnected) && message != was.Message {
		list = append(list, conditionChange{kind: names.ConditionConnected, want: link, was: link, message: message}) // only the message differs
	}
	add(names.ConditionConnected, link, message)
	progress := n.wantProgress(stateOf(object, names.ConditionUpToDate), e.timing, now)
	add(names.ConditionUpToDate, progress, progressMessage(progress, n.progress))
	if n.connected { // an upgrade of Kubernetes does not cause a write for a disconnected Node
		version, message := wantVersion(e.version())
		add(names.ConditionVersionSupported, version, message)
	}
	return list
}

// linkState returns the wanted state of Connected, with its message.
func (e *conditionEvaluator) linkState(n *nodeHealth, object *corev1.Node) (conditionState, string) {
	link := n.wantLink(e.revoked(n.name))
	if link.reason != names.ReasonNoHeartbeat {
		return link, linkMessage(link)
	}
	value, group, known := e.autonomy(object)
	switch was := stateOf(object, names.ConditionConnected); {
	case !known && was.reason == names.ReasonAutonomous:
		return conditionState{}, "" // keeps the state that was written when the autonomy was known
	case value == "":
		return link, linkMessage(link)
	}
	link.reason = names.ReasonAutonomous
	by := names.AnnotationAutonomy + ": " + value
	if group != "" {
		by += " of NodeGroup " + group
	}
	return link, fmt.Sprintf("no heartbeat; the gateway keeps running its current pods, and Kubernetes does not evict them (%s)", by)
}

// conditionChange is one condition to be written.
type conditionChange struct {
	kind      corev1.NodeConditionType
	want, was conditionState
	message   string
}

// linkMessage returns the message about the link. For a lost link it includes what happens to the pods, unless autonomy keeps them.
func linkMessage(s conditionState) string {
	switch s.reason {
	case names.ReasonHeartbeatsArrive:
		return "heartbeats arrive over the link"
	case names.ReasonRevoked:
		return "the node was revoked: its keys are rejected and its links are closed; it can join again with a token issued for this node"
	case names.ReasonKubeletUnwell:
		return "heartbeats arrive over the link, but the kubelet has not renewed its lease"
	}
	return "no heartbeat; the gateway keeps running its current pods, and Kubernetes evicts them as for any unreachable node"
}

func progressMessage(s conditionState, p Progress) string {
	switch s.status {
	case corev1.ConditionFalse:
		return fmt.Sprintf("%d changes were not on the gateway's disk when this was written, the oldest since %s", p.Behind, p.Oldest.UTC().Format(time.RFC3339))
	case corev1.ConditionTrue:
		return "all desired objects are on the gateway's disk"
	default:
		return "unknown without heartbeats"
	}
}

// errNoNode is returned while there is no Node object yet.
var errNoNode = errors.New("node has no Node object")
