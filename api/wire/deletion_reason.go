package wire

import "strings"

// DeletionReason says why nobody should wonder when an object goes; "" for an object that is there to stay. Its writer is the
// cloud; a node need not look at it. What goes without such a word may be a mistake.
type DeletionReason string

// The reasons.
const (
	// DeletionTerminating: the object has a deletion timestamp.
	DeletionTerminating DeletionReason = "terminating"
	// DeletionPodEnded: the pod has come to its end, so nothing of it runs.
	DeletionPodEnded DeletionReason = "ended"
	// DeletionWithoutGrace: the pod asks for no grace period, or another program than Kubernetes keeps it, so it never says that it goes.
	DeletionWithoutGrace DeletionReason = "at-once"
	// DeletionOfCopy: another node's pod, here only for those who look at it, so its going ends nothing.
	DeletionOfCopy DeletionReason = "copy"
)

const confirmedPrefix = "confirmed:"

// DeletionConfirmed is on the tombstone of an object whose deletion was held back until the given word came.
func DeletionConfirmed(word string) DeletionReason { return DeletionReason(confirmedPrefix + word) }

// ConfirmationToken returns the word that Confirmed was made with, "" for any other reason.
func (l DeletionReason) ConfirmationToken() string {
	word, ok := strings.CutPrefix(string(l), confirmedPrefix)
	if !ok {
		return ""
	}
	return word
}

// IsFinal says that the object is known to go, or to be over.
func (l DeletionReason) IsFinal() bool {
	return l == DeletionTerminating || l == DeletionPodEnded || l.ConfirmationToken() != ""
}
