package controllers

// Ownership reports which nodes this replica owns, and so writes for. Calls may be concurrent and must not block.
type Ownership interface {
	// Owns reports whether this replica is the node's owner now.
	Owns(node string) bool
	// Term returns 0 unless this replica owns the node. After each interruption of ownership it returns another number:
	// what was known of the node before may be stale.
	Term(node string) uint64
	// Changed returns a channel that is closed at the next change of any result of Owns and Term after this call.
	Changed() <-chan struct{}
	// LeaseValid reports whether this replica's lease was renewed so recently that no other replica can have taken over its nodes.
	LeaseValid() bool
}
