// Package wan is the bad network between the gateways of a development cluster and its cloud.
//
// With root, Network gives each gateway a network namespace behind a bridge in a namespace called the wan. Nothing
// leads from a gateway to the host, to another gateway or back: the only way out is the Forwarder, which listens inside
// the wan and dials the host's loopback. A cut takes the gateway's port off the bridge, so that every packet is lost
// while both ends still see their link up, as on a real WAN.
//
// Without root there are no namespaces. The Forwarder then listens on loopback and plays the cut itself: it stops
// moving bytes and hides closed connections. This is as silent, but packets are still acknowledged by the local kernel.
//
// The package needs the ip command, and no other tool.
package wan
