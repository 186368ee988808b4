package ports

// For the tests.
var (
	ComputeAssignment = computeAssignment
	ParsePorts        = parsePorts
)
