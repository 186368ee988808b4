package protocol_test

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"

	"github.com/frond-edge/frond/streams/tunnel/protocol"
)

func FuzzFrame(f *testing.F) {
	f.Add(protocol.Frame{Kind: protocol.KindData, Offset: 1, Consumed: 2, Window: 3, Payload: []byte("x")}.AppendTo(nil))
	f.Add(protocol.OpenFrame(netip.MustParseAddrPort("10.1.2.3:80"), "jane").AppendTo(nil))
	f.Add(protocol.OpenFrame(netip.AddrPortFrom(netip.Addr{}, 10250), "jane").AppendTo(nil))
	f.Add(protocol.Reason{Code: protocol.CodeLost, Text: "3 bytes"}.Frame(protocol.KindReset).AppendTo(nil))
	f.Add([]byte(`{"kind":"Pod"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		parsed, err := protocol.ParseFrame(data)
		if err != nil {
			return
		}
		if again := parsed.AppendTo(nil); !bytes.Equal(again, data) {
			t.Errorf("%x became %x", data, again)
		}
		for _, kind := range []protocol.Kind{protocol.KindOpen, protocol.KindOpenAddress} {
			parsed.Kind = kind
			if to, label, ok := protocol.ParseTarget(parsed); ok {
				if a, l, _ := protocol.ParseTarget(protocol.OpenFrame(to, label)); a != to || l != label {
					t.Errorf("open of %s %q became %s %q", to, label, a, l)
				}
			}
		}
		if reason := protocol.ParseReason(parsed.Payload); strings.ContainsAny(reason.Text, "\n\r\x1b") {
			t.Errorf("text %q is not fit for a terminal", reason.Text)
		}
	})
}

// A message that a forged reply brings from another plane is never parsed as a frame.
func TestParseFrame_RefusesForeignMessages(t *testing.T) {
	for name, data := range map[string][]byte{
		"empty":      nil,
		"json":       []byte(`{"kind":"Pod","metadata":{"name":"a-name-that-is-long-enough"}}`),
		"zstd":       append([]byte{0x28, 0xb5, 0x2f, 0xfd}, make([]byte, 100)...),
		"too large":  append(protocol.Frame{Kind: protocol.KindData}.AppendTo(nil), make([]byte, protocol.MaxFrame)...),
		"short":      protocol.Frame{Kind: protocol.KindData}.AppendTo(nil)[:23],
		"no kind":    protocol.Frame{}.AppendTo(nil),
		"other kind": protocol.Frame{Kind: protocol.KindOpenAddress + 1}.AppendTo(nil),
		"other version": func() []byte {
			b := protocol.Frame{Kind: protocol.KindOpenAddress}.AppendTo(nil)
			b[1] = 1 // which does not have the kind
			return b
		}(),
		"other flags": protocol.Frame{Kind: protocol.KindData, Flags: 4}.AppendTo(nil),
	} {
		if raw, err := protocol.ParseFrame(data); err == nil {
			t.Errorf("%s: taken for %+v", name, raw)
		}
	}
}

func TestParseSubject(t *testing.T) {
	key := protocol.NewReplica() + "." + protocol.NewStreamID()
	for subject, want := range map[string]bool{
		"tunnel.gw-17." + key:                    true,
		"tunnelup.gw-17." + key:                  false,
		"tunnel.gw-17":                           false,
		"tunnel.gw-17." + key + ".more":          false,
		"tunnel." + key:                          false,
		"tunnel.gw-17." + key[:len(key)-1]:       false,
		"tunnel.gw-17." + key[:len(key)-1] + "*": false,
	} {
		if token, got, ok := protocol.ParseSubject(protocol.DownPrefix, subject); ok != want || ok && (token != "gw-17" || got != key) {
			t.Errorf("%s: %q %q %t, want %t", subject, token, got, ok, want)
		}
	}
}
