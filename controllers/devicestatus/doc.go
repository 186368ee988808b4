// Package devicestatus writes what gateways report of their devices into the DeviceStatus of each Device, and marks the state of devices as unknown
// while their gateway is away.
//
// Applier writes the reports, on any replica and with one patch each. Absence is of a node's owner: it compares Nodes, Devices and DeviceStatuses in
// memory and writes only where one differs, so it needs no memory of its own and is right after a restart.
package devicestatus
