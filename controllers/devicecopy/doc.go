// Package devicecopy copies each DeviceStatus into the status of its Device, where KubeEdge 1.15 to 1.22 had twins, state and lastOnlineTime, for tools
// that read them there. It writes nothing else of a Device, and nothing at all unless it is started.
//
// A Device is written by the replica that owns its node, at most once a second, and only if the two differ. A Device that was created again does not
// get the status of the one before.
package devicecopy
