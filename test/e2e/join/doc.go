// Package join tests a complete installation: frond init in a bare cluster, the manifests of deploy/cloud, and gateways
// that join behind NAT with one port open and leave again. It has no other content.
//
// Each pod of the manifests is a process in namespaces of its own that sees what its pod would: its volumes at their paths, its
// user, its environment, names of the Service. Each gateway is a machine with systemd as its process 1. The tests need root,
// systemd and nft.
package join
