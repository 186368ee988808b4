package wire

import (
	"encoding/json"
	"time"

	"github.com/frond-edge/frond/api/names"
)

// HoldReason is the reason why deletions are held; it is also the reason of the Node's condition.
type HoldReason string

// The reasons.
const (
	// HoldMassDelete: too many pods of the node went at once without having been terminated.
	HoldMassDelete HoldReason = "MassDelete"
	// HoldRestored: the Kubernetes API went back in time and no longer knows these pods.
	HoldRestored HoldReason = "ClusterRestored"
)

// Hold describes the held deletions of one node.
type Hold struct {
	// Token identifies exactly these pods, by their UIDs.
	Token  string     `json:"token"`
	Reason HoldReason `json:"reason"`
	// Missing is how many of the node's Pods would be deleted.
	Missing int `json:"missing"`
	Pods    int `json:"pods"`
	// MissingSample names some of the missing pods, as namespace/name, for operators.
	MissingSample []string `json:"some,omitempty"`
	// Since is when the hold was first written to the Node; zero before.
	Since time.Time `json:"since,omitzero"`
}

// ParseHold parses the annotations of a Node into the hold and the confirmed token. A value that Frond did not write counts as no hold.
func ParseHold(annotations map[string]string) (hold Hold, confirmed string) {
	if err := json.Unmarshal([]byte(annotations[names.AnnotationHeldDeletions]), &hold); err != nil {
		hold = Hold{}
	}
	return hold, annotations[names.AnnotationConfirmDeletions]
}
