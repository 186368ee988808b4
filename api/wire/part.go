package wire

// PartRequest is the header of one part of a large report's payload, in its wire form, on call.cloud.<node>.part: the JSON of this on one
// line, then the part's bytes.
type PartRequest struct {
	// ID names the report's payload: its position in the outbox and its digest.
	ID string `json:"id"`
	// Offset is the start of the part in a payload of Size bytes.
	Offset int `json:"offset"`
	Size   int `json:"size"`
}

// PartReply confirms that the part is on the hub's disks.
type PartReply struct {
	// Incomplete, in reply to the last part: the hub does not hold all the parts before it, or they belong to another payload.
	Incomplete bool `json:"lacking,omitempty"`
	// Error is the reason why the part was not stored.
	Error string `json:"error,omitempty"`
}
