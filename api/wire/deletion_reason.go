package wire

import "strings"

// Leaving says why nobody should wonder when an object goes; "" for an object that is there to stay. Its writer is the
// cloud; a node need not look at it. What goes without such a word may be a mistake.
type Leaving string

// The reasons.
const (
	// Terminating: the object has a deletion timestamp.
	Terminating Leaving = "terminating"
	// Ended: the pod has come to its end, so nothing of it runs.
	Ended Leaving = "ended"
	// AtOnce: the pod asks for no grace period, or another program than Kubernetes keeps it, so it never says that it goes.
	AtOnce Leaving = "at-once"
	// Copy: another node's pod, here only for those who look at it, so its going ends nothing.
	Copy Leaving = "copy"
)

const confirmed = "confirmed:"

// Confirmed is on the tombstone of an object whose deletion was held back until the given word came.
func Confirmed(word string) Leaving { return Leaving(confirmed + word) }

// Confirmation returns the word that Confirmed was made with, "" for any other reason.
func (l Leaving) Confirmation() string {
	word, ok := strings.CutPrefix(string(l), confirmed)
	if !ok {
		return ""
	}
	return word
}

// Final says that the object is known to go, or to be over.
func (l Leaving) Final() bool { return l == Terminating || l == Ended || l.Confirmation() != "" }
