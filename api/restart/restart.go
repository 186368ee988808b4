// Package restart is the request that restarts a pod's containers on a gateway, which frond edge restart sends to edgecore.
package restart

// Path is the path on which POST restarts a pod's containers, on edgecore's unix socket only:
// /frond/pods/NAMESPACE/NAME/restart?container=NAME selects one container; without it all containers that run continuously.
const Path = "/frond/pods/"

// StoppedContainer is one container that a restart has stopped.
type StoppedContainer struct {
	Container string `json:"container"`
	// ID is the runtime's id, without its scheme; "" if the container did not run.
	ID string `json:"id,omitempty"`
	// Killed: the container got no grace time, because under the policy OnFailure a successful exit would be final.
	Killed bool `json:"killed,omitempty"`
}
