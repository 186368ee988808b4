package wire

// PieceRequest requests, on call.cloud.<node>.piece, a piece of the stored payload of one message that the hub's stream holds for the
// node. The reply is the bytes themselves.
type PieceRequest struct {
	// StreamEpoch is the life of the stream that Sequence belongs to.
	StreamEpoch string `json:"streamEpoch"`
	Subject     string `json:"subject"`
	Sequence    uint64 `json:"seq"`
	// Offset is the start of the piece; Length is how many bytes the node can take now.
	Offset int `json:"offset"`
	Length int `json:"length"`
}
