// Package devcluster runs a complete Frond cluster of real components on one machine: the Kubernetes control plane, the NATS
// hub, cloudcores, and gateways that each have a containerd and a network namespace of their own.
//
// It owns one folder. Each component is a detached process, recorded in state.json there by process id, start
// time and boot, so that any later call, also after a crash or a reboot, finds the running components and starts the others.
// Ports are chosen once and kept. Changing calls (Up, Start, Kill, Cut, Heal, Down) hold the folder's lock; reading ones
// do not. Nothing is kept in memory that state.json does not hold.
//
// Without root, or on request, gateways use edgecore's hollow runtime and share the host's network.
//
// internal/install makes the keys and certificates of the hub and the cloudcores, as for frond init. They are first made in the folder,
// because the hub starts before Kubernetes does, and then stored in Kubernetes, whose copy is authoritative from then on. This package
// makes only Kubernetes' own certificates.
//
// A Cluster is put together from parts: folder (files, ports and state), render (configuration files), process (starting and waiting),
// gateway (links, disks, copies and stores of gateways), bootstrap (what a cluster needs in Kubernetes),
// cgroups and request. This package lists the components and orders up, down and reboot.
//
// The frond command and the end-to-end tests use this package alike. It is Linux only, and for development: it serves one user on
// loopback, its etcd does not sync, and the certificates of Kubernetes are valid for ten years.
package devcluster
