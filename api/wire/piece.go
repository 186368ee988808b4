package wire

// PieceRequest asks, on call.cloud.<node>.piece, for a part of the payload of one message that the hub's stream holds for the
// node, as it is stored there. The answer is the bytes themselves.
type PieceRequest struct {
	// StreamEpoch is the life of the stream that Sequence counts in.
	StreamEpoch string `json:"streamEpoch"`
	Subject     string `json:"subject"`
	Sequence    uint64 `json:"seq"`
	// Offset is where the part begins; Length is how many bytes the node can take now.
	Offset int `json:"offset"`
	Length int `json:"length"`
}
