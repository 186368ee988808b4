package reports

// For the tests.
var (
	MergeAddresses   = NodeAddressing.mergeAddresses
	MergeAnnotations = NodeAddressing.mergeAnnotations
	DaemonEndpoints  = NodeAddressing.daemonEndpoints
)
