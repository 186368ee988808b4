// Package wan simulates the unreliable network between the gateways of a development cluster and its cloud.
//
// With root, Network gives each gateway a network namespace behind a bridge in a namespace called the wan. A gateway has no
// route to the host or to another gateway, nor they to it. Its only way out is the Forwarder, which listens inside the wan and
// dials the host's loopback. A cut removes the gateway's port from the bridge: every packet is lost while both ends still see
// their link up, as on a real WAN.
//
// Without root there are no namespaces. The Forwarder then listens on loopback and simulates the cut: it stops moving bytes
// and hides closed connections. The cut is as silent, but the local kernel still acknowledges packets.
//
// The package needs the ip command, and no other tool.
package wan
