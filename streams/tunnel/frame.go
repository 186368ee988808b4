package tunnel

import (
	"encoding/binary"
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
	magic      = 0xF5
	headerSize = 24
	// The versions. An end that does not know a version refuses to open a stream with it and gives the reason, so a kind of a later
	// version needs no other negotiation.
	versionFirst     = 1
	versionAddresses = 2 // adds kindOpenAddress
)

// kind is the purpose of a frame.
type kind byte

const (
	kindData   kind = iota + 1 // both ways: payload is stream data; may be empty
	kindOpen                   // down: payload is a port (2 bytes) and a label
	kindAccept                 // up: answer to open
	kindRefuse                 // up: answer to open; payload as reset
	kindReset                  // both ways: payload is a code, a zero byte, and a text
	// kindOpenAddress, down: payload is a port (2 bytes), the length of an IP address (1 byte), the address, and a label.
	kindOpenAddress
	kindEnd // one more than the last
)

// version returns the version of frames of a kind.
func (k kind) version() byte {
	if k == kindOpenAddress {
		return versionAddresses
	}
	return versionFirst
}

// opensStream reports whether a kind requests a new stream.
func (k kind) opensStream() bool { return k == kindOpen || k == kindOpenAddress }

const (
	// flagFin says that the sender will send nothing beyond this frame's last byte.
	flagFin = 1 << iota
	// flagClosed says in addition that the sender will read nothing.
	flagClosed
	flagEnd
)

type frame struct {
	kind     kind
	flags    byte
	offset   uint64
	consumed uint64
	window   uint32
	payload  []byte // part of the message, not a copy
}

// appendFrame appends the frame's bytes to b.
func appendFrame(b []byte, f frame) []byte {
	b = append(b, magic, f.kind.version(), byte(f.kind), f.flags)
	b = binary.BigEndian.AppendUint64(b, f.offset)
	b = binary.BigEndian.AppendUint64(b, f.consumed)
	b = binary.BigEndian.AppendUint32(b, f.window)
	return append(b, f.payload...)
}

// parseFrame is the inverse of appendFrame. It refuses any other input with errFrame or errVersion.
func parseFrame(b []byte) (frame, error) {
	switch {
	case len(b) < headerSize || b[0] != magic:
		return frame{}, errFrame
	case b[1] == 0 || b[1] > versionAddresses:
		return frame{}, fmt.Errorf("%w: %d", errVersion, b[1])
	case len(b) > maxFrame:
		return frame{}, fmt.Errorf("%w: %d bytes, at most %d", errFrame, len(b), maxFrame)
	}
	f := frame{
		kind: kind(b[2]), flags: b[3],
		offset: binary.BigEndian.Uint64(b[4:]), consumed: binary.BigEndian.Uint64(b[12:]),
		window: binary.BigEndian.Uint32(b[20:]), payload: b[headerSize:],
	}
	if f.kind == 0 || f.kind >= kindEnd || f.flags >= flagEnd || b[1] != f.kind.version() {
		return frame{}, fmt.Errorf("%w: kind %d, flags %d", errFrame, b[2], b[3])
	}
	return f, nil
}

// openFrame returns the kind and payload of the frame that requests a stream to a target.
func openFrame(target Addr, label string) (kind, []byte) {
	if target.Address.IsValid() {
		return kindOpenAddress, openAddressPayload(netip.AddrPortFrom(target.Address, target.Port), label)
	}
	return kindOpen, openPayload(target.Port, label)
}

// parseTarget parses the target that a frame requests.
func parseTarget(f frame) (to netip.AddrPort, label string, ok bool) {
	if f.kind == kindOpenAddress {
		return parseOpenAddress(f.payload)
	}
	port, label, ok := parseOpen(f.payload)
	return netip.AddrPortFrom(netip.Addr{}, port), label, ok
}

// openAddressPayload builds the payload of kindOpenAddress.
func openAddressPayload(to netip.AddrPort, label string) []byte {
	address := to.Addr().AsSlice()
	b := append(binary.BigEndian.AppendUint16(nil, to.Port()), byte(len(address)))
	return append(append(b, address...), sanitizeText(label, maxLabel)...)
}

func parseOpenAddress(payload []byte) (to netip.AddrPort, label string, ok bool) {
	const fixed = 3
	if len(payload) < fixed || len(payload) < fixed+int(payload[2]) {
		return netip.AddrPort{}, "", false
	}
	rest := payload[fixed+int(payload[2]):]
	address, ok := netip.AddrFromSlice(payload[fixed : fixed+int(payload[2])])
	if !ok || len(rest) > maxLabel {
		return netip.AddrPort{}, "", false
	}
	return netip.AddrPortFrom(address, binary.BigEndian.Uint16(payload)), sanitizeText(string(rest), maxLabel), true
}

// openPayload builds the payload of kindOpen.
func openPayload(port uint16, label string) []byte {
	return append(binary.BigEndian.AppendUint16(nil, port), sanitizeText(label, maxLabel)...)
}

func parseOpen(payload []byte) (port uint16, label string, ok bool) {
	if len(payload) < 2 || len(payload) > 2+maxLabel {
		return 0, "", false
	}
	return binary.BigEndian.Uint16(payload), sanitizeText(string(payload[2:]), maxLabel), true
}

// reasonPayload builds the payload of kindRefuse and kindReset.
func reasonPayload(code Code, text string) []byte {
	return append(append([]byte(code), 0), sanitizeText(text, maxReason)...)
}

func parseReason(payload []byte) (Code, string) {
	code, text, _ := strings.Cut(string(payload[:min(len(payload), 2*maxReason)]), "\x00")
	return Code(sanitizeText(code, 32)), sanitizeText(text, maxReason)
}

// sanitizeText makes a peer's text safe for logs and terminals.
func sanitizeText(text string, limit int) string {
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
