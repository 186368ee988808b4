package tunnel

import (
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// Raw is a frame that a test builds.
type Raw struct {
	Kind             byte
	Flags            byte
	Offset, Consumed uint64
	Window           uint32
	Payload          []byte
}

// The kinds and flags of frames.
const (
	KindData   = byte(kindData)
	KindOpen   = byte(kindOpen)
	KindAccept = byte(kindAccept)
	KindRefuse = byte(kindRefuse)
	KindReset  = byte(kindReset)

	KindOpenAddress = byte(kindOpenAddress)

	FlagFin    = flagFin
	MaxFrame   = maxFrame
	MaxPayload = maxPayload
)

// Bytes returns the frame's wire form.
func (r Raw) Bytes() []byte {
	return appendFrame(nil, frame{kind: kind(r.Kind), flags: r.Flags, offset: r.Offset, consumed: r.Consumed, window: r.Window, payload: r.Payload})
}

// ParseRaw is the inverse of Bytes.
func ParseRaw(b []byte) (Raw, error) {
	f, err := parseFrame(b)
	return Raw{Kind: byte(f.kind), Flags: f.flags, Offset: f.offset, Consumed: f.consumed, Window: f.window, Payload: f.payload}, err
}

// OpenPayload, ReasonPayload and their inverses.
var (
	OpenPayload = openPayload
	ParseOpen   = parseOpen

	OpenAddressPayload = openAddressPayload
	ParseOpenAddress   = parseOpenAddress

	ReasonPayload = reasonPayload
	ParseReason   = parseReason
	RandomToken   = randomToken
)

// ParseDown parses a subject towards a node.
func ParseDown(subject string) (token, key string, ok bool) { return parseSubject(downPrefix, subject) }

// SilentSubject returns the subject of a notice about a silent node.
func SilentSubject(node, replica string) string {
	return silentPrefix + wire.Escape(node) + "." + replica
}

// SilentNotice returns the message about a silent node.
func SilentNotice() []byte {
	return Raw{Kind: KindReset, Payload: ReasonPayload(CodeSilent, "")}.Bytes()
}

// WindowSize returns how many bytes the peer may send ahead of the reader.
func (c *Conn) WindowSize() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.window.size
}

// Window exports window.
type Window struct{ w window }

// NewWindow returns a Window.
func NewWindow(size, limit int, trip time.Duration) *Window {
	return &Window{window{size: size, limit: limit, roundTrip: trip}}
}

// RecordRead records that n bytes were read, grows the window by the result, and returns the new size.
func (w *Window) RecordRead(n int, now time.Time) int {
	w.w.size += w.w.recordRead(n, now)
	return w.w.size
}

// Queue exports queue.
type Queue struct{ q queue }

// Push adds bytes, Read removes them.
func (q *Queue) Push(p []byte)          { q.q.push(p) }
func (q *Queue) Read(p []byte) int      { return q.q.read(p) }
func (q *Queue) Chunks() int            { return len(q.q.chunks) }
func (c *Conn) Subjects() (o, b string) { return c.sendSubject, c.replySubject }
