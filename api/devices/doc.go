// Package devices defines the kinds of KubeEdge's API group devices.kubeedge.io in version v1beta1, field by field as they are in users' files and
// clusters: Device, DeviceModel and DeviceStatus. The versions of KubeEdge that have v1beta1 are 1.15 and later; a field that came later is here.
//
// What is validated beyond KubeEdge's own schema can never work on any gateway and shows in one object alone.
//
// +groupName=devices.kubeedge.io
// +versionName=v1beta1
package devices
