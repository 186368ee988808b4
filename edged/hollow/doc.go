// Package hollow is a container runtime without containers: a real CRI v1 server on a real gRPC unix socket.
//
// It exists for load tests, for machines without root, and for tests of everything above the runtime. It keeps the
// manners of containerd: names are reserved, states go forward only, unknown ids are NotFound where containerd says so,
// removing twice is not an error, exit codes and reasons are filled in, and each container writes a log file in the CRI
// format. What it does not have: processes, networks, cgroups, image contents. All state is in memory; after a restart
// the lists are empty, as after a reboot.
//
// A container's program is read, not run: see Behaviour. Images are "pulled" in no time and listed from then on; a
// repository named "missing" does not exist.
package hollow
