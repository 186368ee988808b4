// Package devicestatus writes what gateways report of their devices into the DeviceStatus of each Device, and marks the state of devices as unknown
// while their gateway is away.
//
// Applier writes the reports, on any replica and with one patch each. Absence is of a node's owner: it compares Nodes, Devices and DeviceStatuses in
// memory and writes only where one differs, so it is right after a restart. A scan, each 5 s, reads the names of gateways with devices and, of gateways that
// went away, their devices; what stays away, and what is marked, is read again each minute.
package devicestatus
