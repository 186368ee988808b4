// Package peer finds out which pod is at the other end of a unix socket.
//
// The kernel names the process (SO_PEERCRED, SO_PEERPIDFD), /proc its control group, and the kubelet names a pod's control groups after its uid. A
// process cannot choose any of the three, unless it may write the control groups of the host. Credentials give the answer to a gRPC server.
package peer
