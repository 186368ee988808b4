// Package devicestatus writes what gateways report of their devices into the DeviceStatus of each Device, and marks the state of devices as unknown
// while their gateway is away.
package devicestatus
