package wire

// PartRequest leads a part of a large report's payload, as it would be sent, on call.cloud.<node>.part: the JSON of this on one line, then
// the part's bytes.
type PartRequest struct {
	// ID names the report's payload: its place in the outbox and its digest.
	ID string `json:"id"`
	// Offset is where the part begins in a payload of Size bytes.
	Offset int `json:"offset"`
	Size   int `json:"size"`
}

// PartReply answers when the part is on the hub's disks.
type PartReply struct {
	// Lacking, to the last part: the hub does not hold all the parts before it, or they are of another payload.
	Incomplete bool `json:"lacking,omitempty"`
	// Error says why the part was not taken.
	Error string `json:"error,omitempty"`
}
