package tunnel

// WindowSize returns how many bytes the peer may send ahead of the reader.
func (c *Conn) WindowSize() int { return c.receiver.Window() }

// Subjects returns the subjects of frames to the other end and to this one.
func (c *Conn) Subjects() (out, back string) { return c.sendSubject, c.replySubject }

// WakeWithError does the part of breakStream that wakes the stream's user, and stops before the stream is removed.
func (c *Conn) WakeWithError(why *BrokenError) {
	c.state.Break(why)
	c.receiver.Break(why)
	c.sender.Break(why)
}
