package tunnel_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/streams/tunnel"
)

func FuzzFrame(f *testing.F) {
	f.Add(tunnel.Raw{Kind: tunnel.KindData, Offset: 1, Consumed: 2, Window: 3, Payload: []byte("x")}.Bytes())
	f.Add(tunnel.Raw{Kind: tunnel.KindOpen, Payload: tunnel.OpenPayload(10250, "jane")}.Bytes())
	f.Add(tunnel.Raw{Kind: tunnel.KindOpenAddress, Payload: tunnel.OpenAddressPayload(netip.MustParseAddrPort("10.1.2.3:80"), "jane")}.Bytes())
	f.Add(tunnel.Raw{Kind: tunnel.KindReset, Payload: tunnel.ReasonPayload(tunnel.CodeLost, "3 bytes")}.Bytes())
	f.Add([]byte(`{"kind":"Pod"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		raw, err := tunnel.ParseRaw(data)
		if err != nil {
			return
		}
		if again := raw.Bytes(); !bytes.Equal(again, data) {
			t.Errorf("%x became %x", data, again)
		}
		if port, label, ok := tunnel.ParseOpen(raw.Payload); ok {
			if p, l, _ := tunnel.ParseOpen(tunnel.OpenPayload(port, label)); p != port || l != label {
				t.Errorf("open of %d %q became %d %q", port, label, p, l)
			}
		}
		if to, label, ok := tunnel.ParseOpenAddress(raw.Payload); ok {
			if a, l, _ := tunnel.ParseOpenAddress(tunnel.OpenAddressPayload(to, label)); a != to || l != label {
				t.Errorf("open of %s %q became %s %q", to, label, a, l)
			}
		}
		if _, text := tunnel.ParseReason(raw.Payload); strings.ContainsAny(text, "\n\r\x1b") {
			t.Errorf("text %q is not fit for a terminal", text)
		}
	})
}

// A message that a forged reply brings from another plane is never parsed as a frame.
func TestParseFrame_RefusesForeignMessages(t *testing.T) {
	for name, data := range map[string][]byte{
		"empty":      nil,
		"json":       []byte(`{"kind":"Pod","metadata":{"name":"a-name-that-is-long-enough"}}`),
		"zstd":       append([]byte{0x28, 0xb5, 0x2f, 0xfd}, make([]byte, 100)...),
		"too large":  append(tunnel.Raw{Kind: tunnel.KindData}.Bytes(), make([]byte, tunnel.MaxFrame)...),
		"short":      tunnel.Raw{Kind: tunnel.KindData}.Bytes()[:23],
		"no kind":    tunnel.Raw{}.Bytes(),
		"other kind": tunnel.Raw{Kind: tunnel.KindOpenAddress + 1}.Bytes(),
		"other version": func() []byte {
			b := tunnel.Raw{Kind: tunnel.KindOpenAddress}.Bytes()
			b[1] = 1 // which does not have the kind
			return b
		}(),
		"other flags": tunnel.Raw{Kind: tunnel.KindData, Flags: 4}.Bytes(),
	} {
		if raw, err := tunnel.ParseRaw(data); err == nil {
			t.Errorf("%s: taken for %+v", name, raw)
		}
	}
}

func TestParseSubject(t *testing.T) {
	key := tunnel.RandomToken(6) + "." + tunnel.RandomToken(16)
	for subject, want := range map[string]bool{
		"tunnel.gw-17." + key:                    true,
		"tunnelup.gw-17." + key:                  false,
		"tunnel.gw-17":                           false,
		"tunnel.gw-17." + key + ".more":          false,
		"tunnel." + key:                          false,
		"tunnel.gw-17." + key[:len(key)-1]:       false,
		"tunnel.gw-17." + key[:len(key)-1] + "*": false,
	} {
		if token, got, ok := tunnel.ParseDown(subject); ok != want || ok && (token != "gw-17" || got != key) {
			t.Errorf("%s: %q %q %t, want %t", subject, token, got, ok, want)
		}
	}
}

// The window follows the link: it reaches the size that a fast link needs and stays small on a slow one.
func TestWindow_FollowsTheLink(t *testing.T) {
	const kib, mib = 1 << 10, 1 << 20
	for name, tt := range map[string]struct {
		trip       time.Duration
		rate       int // bytes per second that the link carries at most
		least, top int
	}{
		"100 ms, 50 MB/s":  {trip: 100 * time.Millisecond, rate: 50e6, least: 4 * mib, top: 4 * mib},
		"50 ms, 1 Mbit/s":  {trip: 50 * time.Millisecond, rate: 125e3, least: 64 * kib, top: 64 * kib},
		"600 ms, 1 Mbit/s": {trip: 600 * time.Millisecond, rate: 125e3, least: 128 * kib, top: 512 * kib},
		"1 ms, 100 MB/s":   {trip: time.Millisecond, rate: 100e6, least: mib, top: 4 * mib},
	} {
		t.Run(name, func(t *testing.T) {
			w := tunnel.NewWindow(64*kib, 4*mib, tt.trip)
			now, size := time.Unix(0, 0), 64*kib
			for range 2000 {
				// One window per round trip, but never more than the link carries.
				rate := min(float64(size)/tt.trip.Seconds(), float64(tt.rate))
				now = now.Add(time.Duration(16 * kib / rate * 1e9))
				size = w.RecordRead(16*kib, now)
			}
			if size < tt.least || size > tt.top {
				t.Errorf("window rests at %d KiB, want %d to %d", size/kib, tt.least/kib, tt.top/kib)
			}
		})
	}
}

func TestQueue_KeepsBytesAndGathersSmallOnes(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test's data
	var q tunnel.Queue
	var pushed, read []byte
	for range 2000 {
		p := make([]byte, random.IntN(1500))
		for i := range p {
			p[i] = byte(random.Uint32())
		}
		q.Push(bytes.Clone(p))
		pushed = append(pushed, p...)
		out := make([]byte, random.IntN(1500))
		read = append(read, out[:q.Read(out)]...)
	}
	for buf := make([]byte, 4096); ; {
		n := q.Read(buf)
		if n == 0 {
			break
		}
		read = append(read, buf[:n]...)
	}
	if !bytes.Equal(pushed, read) {
		t.Error("what was read is not what was pushed")
	}
	for range 4096 {
		q.Push([]byte{1})
	}
	if n := q.Chunks(); n > 3 {
		t.Errorf("4,096 single bytes lie in %d pieces", n)
	}
}
