// Package deviceclaim lets one gateway at a time drive a device. A claim is the annotation names.AnnotationDeviceHolder of the Device: its value is the
// node that holds the device. While that is not the node in spec.nodeName, no gateway is given the Device (devices.DeliveredTo), and only the holder is
// believed.
//
// The owner of the holder's node moves the claim, when the holder's gateway has confirmed that the Device is removed from its disk, or is known to be off.
// A claim is in Kubernetes, and what a gateway has confirmed is known from the hub's stream and its heartbeats, so a restart forgets nothing: at most
// it waits for the next heartbeat. Each write names the version that it was decided for.
//
// The package also writes the condition Delivered with the reason HeldByOtherGateway into the DeviceStatus, while the holder's gateway is away and so does
// not report. It writes nothing else of a DeviceStatus.
package deviceclaim
