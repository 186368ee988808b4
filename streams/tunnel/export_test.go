package tunnel

import (
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// Raw is a frame as a test writes it.
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

// Bytes are what travels.
func (r Raw) Bytes() []byte {
	return appendFrame(nil, frame{kind: kind(r.Kind), flags: r.Flags, offset: r.Offset, consumed: r.Consumed, window: r.Window, payload: r.Payload})
}

// ParseRaw undoes Bytes.
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

// ParseDown reads a subject towards a node.
func ParseDown(subject string) (token, key string, ok bool) { return parseSubject(downPrefix, subject) }

// SilentSubject and Verdict are how a Dialer tells others of a silent node.
func SilentSubject(node, replica string) string {
	return silentPrefix + wire.Escape(node) + "." + replica
}

// SilentNotice is what is told.
func SilentNotice() []byte {
	return Raw{Kind: KindReset, Payload: ReasonPayload(CodeSilent, "")}.Bytes()
}

// WindowSize is how many bytes the peer may send ahead of the reader.
func (c *Conn) WindowSize() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.window.size
}

// Window is the tuner of windows.
type Window struct{ w window }

// NewWindow makes one.
func NewWindow(size, limit int, trip time.Duration) *Window {
	return &Window{window{size: size, limit: limit, roundTrip: trip}}
}

// RecordRead notes n bytes, grows as it wants to, and returns the new size.
func (w *Window) RecordRead(n int, now time.Time) int {
	w.w.size += w.w.recordRead(n, now)
	return w.w.size
}

// Queue is what holds bytes that wait for a reader.
type Queue struct{ q queue }

// Push adds, Read takes.
func (q *Queue) Push(p []byte)          { q.q.push(p) }
func (q *Queue) Read(p []byte) int      { return q.q.read(p) }
func (q *Queue) Chunks() int            { return len(q.q.chunks) }
func (c *Conn) Subjects() (o, b string) { return c.sendSubject, c.replySubject }
