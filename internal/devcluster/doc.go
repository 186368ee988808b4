// Package devcluster runs a whole Frond on one machine, every part of it real: the Kubernetes control plane, the NATS
// hub, cloudcores, and gateways that each have a containerd and a network namespace of their own.
//
// It owns one folder. Everything it starts is a detached process, written down in state.json there by process id, start
// time and boot, so that any later call, also one after a crash or a reboot, finds what runs and starts what does not.
// Ports are chosen once and kept. Changing calls (Up, Start, Kill, Cut, Heal, Down) hold the folder's lock; reading ones
// do not. Nothing is kept in memory that state.json does not hold.
//
// Without root, or when asked, gateways use edgecore's hollow runtime and share the host's network.
//
// What the hub and the cloudcores need is made by internal/install, as by frond init: first in the folder, for the hub runs before
// Kubernetes does, then in Kubernetes, which has the last word from then on. Only Kubernetes' own certificates are made here.
//
// The frond command and the end-to-end tests use this package alike. It is Linux only, and for development: one user's
// loopback, an etcd that does not sync, and certificates of Kubernetes that live ten years.
package devcluster
