// Package hollow simulates a container runtime without containers: a real CRI v1 server on a real gRPC unix socket.
//
// It serves load tests, machines without root, and tests of everything above the runtime. It follows the behaviour of
// containerd: names are reserved, states only advance, and unknown ids are NotFound where containerd returns it. Removing
// twice is not an error, exit codes and reasons are filled in, and each container writes a log file in the CRI format.
// It has no processes, networks, cgroups or image contents. All state is in memory; after a restart the lists are empty,
// as after a reboot.
//
// A container's program is interpreted, not run: see [behaviour.Behaviour]. Images are "pulled" at once and listed from then on; a
// repository named "missing" does not exist.
package hollow
