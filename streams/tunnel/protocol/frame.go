package protocol

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"unicode/utf8"
)

// A frame is one NATS message:
//
//	byte  0       0xF5, which begins no JSON and no zstd: a message of another plane is never taken for a frame
//	byte  1       version: the first one that has the kind
//	byte  2       kind
//	byte  3       flags
//	bytes 4-11    offset: how many bytes of the stream its sender has sent before this frame
//	bytes 12-19   consumed: how many bytes of the other direction its sender has handed to its reader
//	bytes 20-23   window: how many bytes after those it may be sent
//	bytes 24-     payload
//
// Numbers are big-endian. Offset, consumed and window are absolute and in every frame. So the next frame of any kind reveals a lost one,
// and no lost credit stops a stream.
const (
	magic = 0xF5
	// HeaderSize is the size of a frame without its payload.
	HeaderSize = 24
	// MaxPayload is the number of stream bytes that one frame carries. A link is first in, first out, so it determines how long a
	// keystroke waits behind another stream's frame: 0.26 s at 1 Mbit/s.
	MaxPayload = 32 << 10
	// MaxFrame is the largest accepted frame, header included: room for a later version's payload.
	MaxFrame = 64 << 10
	// MaxLabel bounds the label that Dial sends to the node.
	MaxLabel = 256
	// maxReason bounds the text of a refusal or a reset, maxCode its code.
	maxReason = 512
	maxCode   = 32
	// The versions. An end that does not know a version refuses to open a stream with it and gives the reason, so a kind of a later
	// version needs no other negotiation.
	versionFirst     = 1
	versionAddresses = 2 // adds KindOpenAddress
)

var (
	// ErrFrame reports bytes that no version of this package sends.
	ErrFrame = errors.New("not a tunnel frame")
	// ErrVersion reports a frame of another version.
	ErrVersion = errors.New("unknown version of the tunnel")
)

// Kind is the purpose of a frame.
type Kind byte

// The kinds of frames.
const (
	KindData   Kind = iota + 1 // both ways: payload is stream data; may be empty
	KindOpen                   // down: payload is a port (2 bytes) and a label
	KindAccept                 // up: answer to open
	KindRefuse                 // up: answer to open; payload as reset
	KindReset                  // both ways: payload is a code, a zero byte, and a text
	// KindOpenAddress, down: payload is a port (2 bytes), the length of an IP address (1 byte), the address, and a label.
	KindOpenAddress
	kindEnd // one more than the last
)

// version returns the version of frames of a kind.
func (k Kind) version() byte {
	if k == KindOpenAddress {
		return versionAddresses
	}
	return versionFirst
}

// OpensStream reports whether a kind requests a new stream.
func (k Kind) OpensStream() bool { return k == KindOpen || k == KindOpenAddress }

const (
	// FlagFin says that the sender will send nothing beyond this frame's last byte.
	FlagFin = 1 << iota
	// FlagClosed says in addition that the sender will read nothing.
	FlagClosed
	flagEnd
)

// Frame is a parsed frame. Its fields are described above.
type Frame struct {
	Kind     Kind
	Flags    byte
	Offset   uint64
	Consumed uint64
	Window   uint32
	Payload  []byte // part of the message, not a copy
}

// AppendTo appends the frame's bytes to b.
func (f Frame) AppendTo(b []byte) []byte {
	b = append(b, magic, f.Kind.version(), byte(f.Kind), f.Flags)
	b = binary.BigEndian.AppendUint64(b, f.Offset)
	b = binary.BigEndian.AppendUint64(b, f.Consumed)
	b = binary.BigEndian.AppendUint32(b, f.Window)
	return append(b, f.Payload...)
}

// ParseFrame is the inverse of AppendTo. It refuses any other input with ErrFrame or ErrVersion.
func ParseFrame(b []byte) (Frame, error) {
	switch {
	case len(b) < HeaderSize || b[0] != magic:
		return Frame{}, ErrFrame
	case b[1] == 0 || b[1] > versionAddresses:
		return Frame{}, fmt.Errorf("%w: %d", ErrVersion, b[1])
	case len(b) > MaxFrame:
		return Frame{}, fmt.Errorf("%w: %d bytes, at most %d", ErrFrame, len(b), MaxFrame)
	}
	f := Frame{
		Kind: Kind(b[2]), Flags: b[3],
		Offset: binary.BigEndian.Uint64(b[4:]), Consumed: binary.BigEndian.Uint64(b[12:]),
		Window: binary.BigEndian.Uint32(b[20:]), Payload: b[HeaderSize:],
	}
	if f.Kind == 0 || f.Kind >= kindEnd || f.Flags >= flagEnd || b[1] != f.Kind.version() {
		return Frame{}, fmt.Errorf("%w: kind %d, flags %d", ErrFrame, b[2], b[3])
	}
	return f, nil
}

// OpenFrame returns the frame that requests a stream to a target. A target without an address is a port of the node itself.
func OpenFrame(to netip.AddrPort, label string) Frame {
	f := Frame{Kind: KindOpen, Payload: binary.BigEndian.AppendUint16(nil, to.Port())}
	if to.Addr().IsValid() {
		address := to.Addr().AsSlice()
		f.Kind, f.Payload = KindOpenAddress, append(append(f.Payload, byte(len(address))), address...)
	}
	f.Payload = append(f.Payload, SanitizeText(label, MaxLabel)...)
	return f
}

// ParseTarget parses the target that a frame of KindOpen or KindOpenAddress requests.
func ParseTarget(f Frame) (to netip.AddrPort, label string, ok bool) {
	const portSize = 2
	if len(f.Payload) < portSize {
		return netip.AddrPort{}, "", false
	}
	port, rest := binary.BigEndian.Uint16(f.Payload), f.Payload[portSize:]
	var address netip.Addr
	if f.Kind == KindOpenAddress {
		if len(rest) < 1 || len(rest) < 1+int(rest[0]) {
			return netip.AddrPort{}, "", false
		}
		if address, ok = netip.AddrFromSlice(rest[1 : 1+int(rest[0])]); !ok {
			return netip.AddrPort{}, "", false
		}
		rest = rest[1+int(rest[0]):]
	}
	if len(rest) > MaxLabel {
		return netip.AddrPort{}, "", false
	}
	return netip.AddrPortFrom(address, port), SanitizeText(string(rest), MaxLabel), true
}

// SanitizeText makes a peer's text safe for logs and terminals, and at most limit bytes long.
func SanitizeText(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			return '?'
		}
		return r
	}, text)
	for len(text) > limit {
		_, size := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-size]
	}
	return text
}
