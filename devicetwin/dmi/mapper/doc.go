// Package mapper brings each mapper to the Devices that it should have.
//
// It is the half of KubeEdge's device mapper interface in which edgecore calls. A Registry has the Devices and DeviceModels that it is given, and for
// each protocol the mapper that registered last: what that mapper has, and one goroutine that makes all calls to it, so that one that hangs
// delays no other. What a mapper has is stored; the next start goes on from there. A mapper is never asked to remove a device that it may not
// have: that ends a mapper of KubeEdge's framework.
package mapper
