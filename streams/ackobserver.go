package streams

// ackObserver is a Store that wants to know what is acked, before the ack leaves. Only the fault suite's is one.
type ackObserver interface{ Acked(sequence uint64) }

func observeAck(store Store, sequence uint64) {
	if o, ok := store.(ackObserver); ok {
		o.Acked(sequence)
	}
}
