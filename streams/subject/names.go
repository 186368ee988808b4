package subject

// The hub's JetStream domain, and the names of the streams and buckets.
const (
	HubDomain = "hub"
	// DesiredStream is the stream of partition 0, the only one of a hub with one partition; Layout.DesiredStream is that of a node.
	DesiredStream = streamPrefix + "0"
	ReportStream  = "REPORT-0"
	EventStream   = "EVENT-0"
	// PartStream holds the payloads of large reports, in parts, until the reports are handled.
	PartStream       = "PART-0"
	DeadLetterStream = "DEAD"
	MembersBucket    = "members"
	// RegistryBucket holds state that must outlive every cloudcore: how far the Kubernetes history had come, and the scopes of nodes.
	RegistryBucket     = "registry"
	OutboxStream       = "OUTBOX"
	OutboxEventsStream = "OUTBOX-EVENTS"
	// TelemetryStream holds the samples of all nodes' devices, one message each; LeafTelemetryStream those that wait at a node for the link.
	TelemetryStream     = "TELEMETRY-0"
	LeafTelemetryStream = "TELEMETRY"
	// MessagesStream holds what apps publish on custom MQTT topics, LeafMessagesStream what waits of it at a node for the link.
	MessagesStream     = "MESSAGES-0"
	LeafMessagesStream = "MESSAGES"
)
