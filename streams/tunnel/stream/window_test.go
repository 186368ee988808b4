package stream_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/frond-edge/frond/streams/tunnel/stream"
)

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
			w := stream.NewWindow(64*kib, 4*mib, tt.trip)
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
	var q stream.Queue
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
