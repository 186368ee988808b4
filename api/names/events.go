package names

// The reasons of Events about a Node.
const (
	EventConnected    = "EdgeConnected"
	EventDisconnected = "EdgeDisconnected"
	EventBehind       = "EdgeBehind"
	EventUpToDate     = "EdgeUpToDate"
	// EventDeletionsHeld: deletions wait for a confirmation.
	EventDeletionsHeld = "DeletionsHeld"
	// EventAuditDifference: the gateway's store differed from what the cloud holds for it, and is repaired.
	EventAuditDifference = "AuditDifference"
	// EventDuplicateNode: two agents are connected as one node.
	EventDuplicateNode = "DuplicateNode"
	// EventLinkClosed: the hub closed the gateway's link for what came over it.
	EventLinkClosed = "LinkClosed"
	// EventIdentityRevoked: the node was revoked.
	EventIdentityRevoked = "IdentityRevoked"
	// EventCertificateDenied: a request for a certificate was denied.
	EventCertificateDenied = "CertificateDenied"
	// EventAutonomyNotUnderstood: the value of AnnotationAutonomy is no duration.
	EventAutonomyNotUnderstood = "AutonomyNotUnderstood"
	// EventProtectedPodEvicted: a pod of a protected namespace was deleted from a gateway.
	EventProtectedPodEvicted = "ProtectedPodEvicted"
	// EventProtectedObjectWithheld: an object of a protected namespace was not given to a gateway.
	EventProtectedObjectWithheld = "ProtectedObjectWithheld"
)

// The reasons of Events about a NodeGroup.
const (
	// EventGroupSpecNotAccepted: ConditionSpecAccepted became False.
	EventGroupSpecNotAccepted = "GroupSpecNotAccepted"
	// EventNodesNotSelected: ConditionAllSelected became False.
	EventNodesNotSelected = "NodesNotSelected"
	// EventEvictionsHeld: ConditionEvictionsHeld became True.
	EventEvictionsHeld = "EvictionsHeld"
	// EventWindowsNotParsed: ConditionWindowsParsed became False.
	EventWindowsNotParsed = "MaintenanceWindowsNotParsed"
)

// EventJobFailed is the reason of an Event about a job: it has the phase Failure now, or has stopped.
const EventJobFailed = "JobFailed"

// The reasons of the conditions of a CertificateSigningRequest.
const (
	ReasonGatewayServing   = "FrondGatewayServing"
	ReasonNotTheNodesNames = "FrondNotTheNodesOwn"
)

// The reasons of Events about a Device.
const (
	// EventDesiredValueRefused: the model does not allow a desired value.
	EventDesiredValueRefused = "DesiredValueRefused"
	// EventDeviceModelMissing: the Device names no DeviceModel, or one that does not exist.
	EventDeviceModelMissing = "DeviceModelMissing"
	// EventMapperRefused: the mapper answers the Device with an error.
	EventMapperRefused = "MapperRefused"
	// EventMapperUnreachable: the mapper that has registered for the Device's protocol does not listen.
	EventMapperUnreachable = "MapperUnreachable"
	// EventDeviceNotServed: neither a mapper nor an app has said anything of the Device.
	EventDeviceNotServed = "DeviceNotServed"
	// EventReportRefused: the gateway has refused a message of the device.
	EventReportRefused = "ReportRefused"
	// EventReductionNotUnderstood: an annotation about telemetry is wrong, and none of the Device's is followed.
	EventReductionNotUnderstood = "ReductionNotUnderstood"
)
