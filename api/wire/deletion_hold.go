package wire

import (
	"encoding/json"
	"time"
)

const (
	// HeldDeletionsAnnotation is on a Node while deletions for it are held back; its value is the JSON of a Hold. The cloud writes it.
	HeldDeletionsAnnotation = "frond.io/held-deletions"
	// ConfirmDeletionsAnnotation on a Node lets go what the Hold with this Token holds back, and nothing that is missed later. People
	// set it; the cloud removes it with HeldDeletionsAnnotation.
	ConfirmDeletionsAnnotation = "frond.io/confirm-deletions"
	// DeletionsHeldCondition of a Node is True while deletions are held back.
	DeletionsHeldCondition = "EdgeDeletionsHeld"
)

// HoldReason says why deletions are held back; it is the reason of the Node's condition, too.
type HoldReason string

// The reasons.
const (
	// HoldMassDelete: too many pods of the node went at once without having been terminated.
	HoldMassDelete HoldReason = "MassDelete"
	// HoldRestored: the Kubernetes API went back in time and no longer knows these pods.
	HoldRestored HoldReason = "ClusterRestored"
)

// Hold is what is held back for one node.
type Hold struct {
	// Token names exactly these pods, by their UIDs.
	Token  string     `json:"token"`
	Reason HoldReason `json:"reason"`
	// Missing of the node's Pods would go.
	Missing int `json:"missing"`
	Pods    int `json:"pods"`
	// MissingSample of the missing pods, as namespace/name, for people.
	MissingSample []string `json:"some,omitempty"`
	// Since is when this was first written to the Node; zero before.
	Since time.Time `json:"since,omitzero"`
}

// ParseHold reads the annotations of a Node: what is held back, and what has been confirmed. A value that is not ours reads as
// no hold.
func ParseHold(annotations map[string]string) (hold Hold, confirmed string) {
	if err := json.Unmarshal([]byte(annotations[HeldDeletionsAnnotation]), &hold); err != nil {
		hold = Hold{}
	}
	return hold, annotations[ConfirmDeletionsAnnotation]
}
