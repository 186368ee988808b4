package agent

// These export functions of the package to tests.
var (
	ShareSocket      = shareSocket
	DevicesCondition = devicesCondition
)
