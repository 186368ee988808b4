package names

import corev1 "k8s.io/api/core/v1"

// The conditions of a Node that the cloud writes. A gateway's report of them is ignored: its copy may be old.
const (
	// ConditionConnected reports whether heartbeats of the node arrive.
	ConditionConnected corev1.NodeConditionType = "EdgeConnected"
	// ConditionUpToDate reports whether the whole desired state is on the node's disk: False only after a change has waited for some
	// time, Unknown while the node is not connected.
	ConditionUpToDate corev1.NodeConditionType = "EdgeUpToDate"
	// ConditionDeletionsHeld is True while deletions are held.
	ConditionDeletionsHeld corev1.NodeConditionType = "EdgeDeletionsHeld"
	// ConditionVersionSupported reports whether Frond was tested with the version of the Kubernetes API.
	ConditionVersionSupported corev1.NodeConditionType = "KubernetesVersionSupported"
)

// The conditions of a Node that the gateway's agent writes.
const (
	// ConditionStorage reports whether the store's disk has space.
	ConditionStorage corev1.NodeConditionType = "EdgeStorage"
	// ConditionIdentity reports how long the gateway's key is valid.
	ConditionIdentity corev1.NodeConditionType = "EdgeIdentity"
	// ConditionDevices reports whether the gateway serves devices; its message says how, and what samples and messages may take of the link.
	// A gateway that has never served any has no such condition.
	ConditionDevices corev1.NodeConditionType = "EdgeDevices"
)

// CloudWrites reports whether the cloud writes a condition of a Node.
func CloudWrites(condition corev1.NodeConditionType) bool {
	switch condition {
	case ConditionConnected, ConditionUpToDate, ConditionDeletionsHeld, ConditionVersionSupported:
		return true
	default:
		return false
	}
}

// The reasons of ConditionConnected.
const (
	ReasonHeartbeatsArrive = "HeartbeatsArrive"
	// ReasonKubeletUnwell: heartbeats arrive, and say that the kubelet is not alive.
	ReasonKubeletUnwell = "KubeletUnwell"
	ReasonNoHeartbeat   = "NoHeartbeat"
	// ReasonAutonomous: no heartbeats arrive, and the pods stay as AnnotationAutonomy says.
	ReasonAutonomous = "Autonomous"
	// ReasonRevoked: the node was revoked and its links are closed.
	ReasonRevoked = "Revoked"
)

// The reasons of ConditionUpToDate.
const (
	ReasonAllApplied   = "AllApplied"
	ReasonBehind       = "Behind"
	ReasonNotConnected = "NotConnected"
)

// ReasonNothingHeld is the reason of ConditionDeletionsHeld when nothing is held; the others are those of wire.Hold.
const ReasonNothingHeld = "NothingHeld"

// The reasons of ConditionStorage.
const (
	ReasonDiskHasSpace   = "DiskHasSpace"
	ReasonDiskAlmostFull = "DiskAlmostFull"
	ReasonDiskFull       = "DiskFull"
)

// The reasons of ConditionDevices.
const (
	ReasonServed    = "Served"
	ReasonNotServed = "NotServed"
	// ReasonBrokerNotStarted: the gateway's own MQTT broker must not listen as it is configured; the message says what to set. All else is served.
	ReasonBrokerNotStarted = "BrokerNotStarted"
)

// The reasons of ConditionIdentity.
const (
	ReasonKeyValid      = "KeyValid"
	ReasonKeyExpired    = "KeyExpired"
	ReasonKeyNotRenewed = "KeyNotRenewed"
	ReasonNotEnrolled   = "NotEnrolled"
)

// The conditions of a NodeGroup, which cloudcore writes.
const (
	// ConditionSpecAccepted reports whether all of the spec takes effect.
	ConditionSpecAccepted = "SpecAccepted"
	// ConditionAllSelected reports whether each Node that the group asks for is a member.
	ConditionAllSelected = "AllSelected"
	// ConditionEvictionsHeld is True while pods that no longer belong on their Node stay there.
	ConditionEvictionsHeld = "EvictionsHeld"
	// ConditionWindowsParsed reports whether AnnotationMaintenanceWindows could be parsed; it exists with the annotation.
	ConditionWindowsParsed = "MaintenanceWindowsParsed"
)

// The reasons of the conditions of a NodeGroup.
const (
	ReasonAccepted = "Accepted"
	// ReasonUntrustedLabels: the group selects by labels that a gateway sets in its own Node.
	ReasonUntrustedLabels = "UntrustedLabels"
	// ReasonNameTooLong: the name of the group cannot be the value of a label.
	ReasonNameTooLong = "NameTooLong"

	ReasonAllMembers = "AllMembers"
	// ReasonNodesNotSelected: another group has a Node, or a named one does not exist.
	ReasonNodesNotSelected = "NodesNotSelected"

	// ReasonMassLeave: most Nodes of a group left it at once.
	ReasonMassLeave = "MassLeave"
	// ReasonDisruptionBudget: a PodDisruptionBudget does not permit the eviction now.
	ReasonDisruptionBudget = "DisruptionBudget"

	ReasonParsed    = "Parsed"
	ReasonNotParsed = "NotParsed"
)
