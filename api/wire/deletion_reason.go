package wire

import "strings"

// DeletionReason says why the removal of an object is expected; "" for an object that is to stay. The cloud writes it; a node need not
// read it. A removal without a reason may be a mistake.
type DeletionReason string

// The reasons.
const (
	// DeletionTerminating: the object has a deletion timestamp.
	DeletionTerminating DeletionReason = "terminating"
	// DeletionPodEnded: the pod has terminated, so nothing of it runs.
	DeletionPodEnded DeletionReason = "ended"
	// DeletionWithoutGrace: the pod has no grace period, or is managed by another program than Kubernetes, so no termination precedes its
	// removal.
	DeletionWithoutGrace DeletionReason = "at-once"
	// DeletionOfCopy: another node's pod, delivered here only for its readers, so its removal ends nothing.
	DeletionOfCopy DeletionReason = "copy"
)

const confirmedPrefix = "confirmed:"

// DeletionConfirmed is the reason on the tombstone of an object whose deletion was held until the given token confirmed it.
func DeletionConfirmed(word string) DeletionReason { return DeletionReason(confirmedPrefix + word) }

// ConfirmationToken returns the token that DeletionConfirmed was called with, "" for any other reason.
func (l DeletionReason) ConfirmationToken() string {
	word, ok := strings.CutPrefix(string(l), confirmedPrefix)
	if !ok {
		return ""
	}
	return word
}

// IsFinal reports whether the object is known to be terminating or terminated.
func (l DeletionReason) IsFinal() bool {
	return l == DeletionTerminating || l == DeletionPodEnded || l.ConfirmationToken() != ""
}
