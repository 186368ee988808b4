package tunnel

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"
)

// A frame is one NATS message:
//
//	byte  0       0xF5, which begins no JSON and no zstd: a message of another plane is never taken for a frame
//	byte  1       version
//	byte  2       kind
//	byte  3       flags
//	bytes 4-11    offset: how many bytes of the stream its sender has sent before this frame
//	bytes 12-19   consumed: how many bytes of the other direction its sender has handed to its reader
//	bytes 20-23   window: how many bytes after those it may be sent
//	bytes 24-     payload
//
// Numbers are big-endian. Offset, consumed and window are absolute and in every frame, so a lost frame shows in the
// next one, whatever kind that is, and no lost credit stops a stream.
const (
	magic      = 0xF5
	version    = 1
	headerSize = 24
)

// kind is what a frame is for.
type kind byte

const (
	kindData   kind = iota + 1 // both ways: payload is the stream's; may be empty
	kindOpen                   // down: payload is a port (2 bytes) and a label
	kindAccept                 // up: answer to open
	kindRefuse                 // up: answer to open; payload as reset
	kindReset                  // both ways: payload is a code, a zero byte, and a text
	kindEnd                    // one more than the last
)

const (
	// flagFin says that its sender will send nothing beyond this frame's last byte.
	flagFin = 1 << iota
	// flagClosed says moreover that it will read nothing.
	flagClosed
	flagEnd
)

type frame struct {
	kind     kind
	flags    byte
	offset   uint64
	consumed uint64
	window   uint32
	payload  []byte // of the message, not copied
}

// appendFrame adds the frame's bytes to b.
func appendFrame(b []byte, f frame) []byte {
	b = append(b, magic, version, byte(f.kind), f.flags)
	b = binary.BigEndian.AppendUint64(b, f.offset)
	b = binary.BigEndian.AppendUint64(b, f.consumed)
	b = binary.BigEndian.AppendUint32(b, f.window)
	return append(b, f.payload...)
}

// parseFrame undoes appendFrame and refuses all that it cannot have made, with errFrame or errVersion.
func parseFrame(b []byte) (frame, error) {
	switch {
	case len(b) < headerSize || b[0] != magic:
		return frame{}, errFrame
	case b[1] != version:
		return frame{}, fmt.Errorf("%w: %d", errVersion, b[1])
	case len(b) > maxFrame:
		return frame{}, fmt.Errorf("%w: %d bytes, at most %d", errFrame, len(b), maxFrame)
	}
	f := frame{
		kind: kind(b[2]), flags: b[3],
		offset: binary.BigEndian.Uint64(b[4:]), consumed: binary.BigEndian.Uint64(b[12:]),
		window: binary.BigEndian.Uint32(b[20:]), payload: b[headerSize:],
	}
	if f.kind == 0 || f.kind >= kindEnd || f.flags >= flagEnd {
		return frame{}, fmt.Errorf("%w: kind %d, flags %d", errFrame, b[2], b[3])
	}
	return f, nil
}

// openPayload is the payload of kindOpen.
func openPayload(port uint16, label string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, port), clean(label, maxLabel)...)
}

func parseOpen(payload []byte) (port uint16, label string, ok bool) {
	if len(payload) < 2 || len(payload) > 2+maxLabel {
		return 0, "", false
	}
	return binary.BigEndian.Uint16(payload), clean(string(payload[2:]), maxLabel), true
}

// reasonPayload is the payload of kindRefuse and kindReset.
func reasonPayload(code Code, text string) []byte {
	return append(append([]byte(code), 0), clean(text, maxReason)...)
}

func parseReason(payload []byte) (Code, string) {
	code, text, _ := strings.Cut(string(payload[:min(len(payload), 2*maxReason)]), "\x00")
	return Code(clean(code, 32)), clean(text, maxReason)
}

// clean makes text of a peer fit for logs and terminals.
func clean(text string, limit int) string {
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
