package envelope

const (
	// HeaderSize is the size of a whole payload of which a message carries a part.
	HeaderSize = "Frond-Size"
	// HeaderGone says that the stream no longer holds the message of which a part was requested.
	HeaderGone = "Frond-Gone"
	// HeaderParts is the header of a report whose payload was sent in parts before it: the id of the parts. Its HeaderSize is the size
	// of the payload.
	HeaderParts = "Frond-Parts"
)
