package deliver

// ackObserver is a Store that observes each ack before it is sent. Only the store of the fault suite implements it.
type ackObserver interface{ Acked(sequence uint64) }

func observeAck(store Store, sequence uint64) {
	if o, ok := store.(ackObserver); ok {
		o.Acked(sequence)
	}
}
