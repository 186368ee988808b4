package names

const (
	// AnnotationAutonomy of a Node or a NodeGroup sets how long the pods of the node, or of the group's nodes, stay while the nodes are
	// unreachable: a Go duration, or AutonomyForever. The annotation of the Node takes precedence; 0s means no time at all.
	AnnotationAutonomy = "frond.io/autonomy"
	// AnnotationGroupZone is on a Node while its NodeGroup is its zone; the value is that zone. cloudcore writes it, and so knows later which
	// zone label is its own.
	AnnotationGroupZone = "frond.io/zone-of-group"
	// AnnotationRollout of an EdgeApplication is the plan of its rollouts, JSON or YAML: steps, successThreshold, soak, approval.
	AnnotationRollout = "frond.io/rollout"
	// AnnotationRolloutPaused of an EdgeApplication holds its rollout if it is "true".
	AnnotationRolloutPaused = "frond.io/rollout-paused"
	// AnnotationRolloutApproved of an EdgeApplication approves a step of the rollout of a revision: REVISION/STEP, or REVISION/STEP/force.
	AnnotationRolloutApproved = "frond.io/rollout-approved"
	// AnnotationTargetGroups of an EdgeApplication is a label selector: the NodeGroups that it selects are targets too.
	AnnotationTargetGroups = "frond.io/target-node-groups"
	// AnnotationDrift of an EdgeApplication says what happens when somebody else changes its objects: "report" (the default) or "correct".
	AnnotationDrift = "frond.io/drift"
	// AnnotationAdopt of an EdgeApplication lets it take over objects of its namespace that have no controller, if it is "true".
	AnnotationAdopt = "frond.io/adopt"

	// AnnotationMaintenanceWindows of a NodeGroup says when its applications may be updated, as a JSON list of windows.
	AnnotationMaintenanceWindows = "frond.io/maintenance-windows"
	// AnnotationConfirmEvictions of a NodeGroup releases the evictions that are held, if its value is the token of ConditionEvictionsHeld.
	AnnotationConfirmEvictions = "frond.io/confirm-evictions"
	// AnnotationJobDeadline of a job is how long it waits for gateways without a link: a Go duration. What is not done then is Unknown.
	AnnotationJobDeadline = "frond.io/deadline"
	// AnnotationJobStop of a job stops it if it is "true": no further gateway begins.
	AnnotationJobStop = "frond.io/stop"
	// AnnotationJobResume of a job continues it after too many failures, once for each new value.
	AnnotationJobResume = "frond.io/resume"
	// AutonomyForever is the value of AnnotationAutonomy for pods that always stay.
	AutonomyForever = "forever"
	// AnnotationToleratedBefore of a pod holds the toleration seconds that the pod had before, by taint.
	AnnotationToleratedBefore = "frond.io/tolerated-before"

	// AnnotationHeldDeletions is on a Node while deletions for it are held; its value is the JSON of a wire.Hold. The cloud writes it.
	AnnotationHeldDeletions = "frond.io/held-deletions"
	// AnnotationConfirmDeletions on a Node releases the deletions of the Hold with this Token, and no later ones. Operators set it; the
	// cloud removes it with AnnotationHeldDeletions.
	AnnotationConfirmDeletions = "frond.io/confirm-deletions"

	// AnnotationDeadband on a Device, followed by the name of a property, says which of its samples are kept as telemetry: those that differ by more
	// than its value, a number above 0, from the one kept before.
	AnnotationDeadband = "frond.io/deadband."
	// AnnotationChangeOnly is the same for samples that differ at all: true or false.
	AnnotationChangeOnly = "frond.io/change-only."
	// AnnotationMaxInterval is the time after which a sample is kept all the same: a Go duration of 1 s or more.
	AnnotationMaxInterval = "frond.io/max-interval."

	// AnnotationConfirmDeletion permits the deletion of a protected object. Its value is the object's name, so that one command cannot
	// confirm several deletions by mistake.
	AnnotationConfirmDeletion = "frond.io/confirm-deletion"
	// AnnotationLastBackup on Frond's namespace is the time of its last backup, in RFC 3339.
	AnnotationLastBackup = "frond.io/last-backup"

	// AnnotationMetricsPath holds the path for metrics-server on the host of AddressMetrics; the name is metrics-server's.
	AnnotationMetricsPath = "metrics.k8s.io/resource-metrics-path"
)

// The annotations of the Secret of a bootstrap token.
const (
	// AnnotationUses is the number of gateways that may join with the token; 0 is no limit, and without the annotation it is one.
	AnnotationUses = "frond.io/uses"
	// AnnotationNode is the only node that may join with the token; it then admits a node that was revoked or has another key.
	AnnotationNode = "frond.io/node"
	// AnnotationUsed lists the uses, "NODE=KEY", separated by commas; not for a token without a limit. Only cloudcore writes it.
	AnnotationUsed = "frond.io/used"
)

// The types of the addresses that the cloud adds to those of an edge Node. Clients of nodes are configured to prefer one of them.
const (
	// AddressTunnel is the type of wire.TunnelAddress, for kube-apiserver.
	AddressTunnel = "frond.io/tunnel"
	// AddressMetrics is the type of the host that serves a node's metrics, for metrics-server.
	AddressMetrics = "frond.io/metrics"
)
