package tunnel_test

import (
	"io"
	"testing"
	"time"

	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/test/kit/relaytest"
)

// BenchmarkFarLink moves 64 MiB towards the cloud over a link with a round trip of 100 ms, from a new stream's small window on.
func BenchmarkFarLink(b *testing.B) {
	e := startPairOver(b, tunnel.Config{}, tunnel.Config{}, func(addr string) string {
		return relaytest.Start(b, addr, relaytest.Config{Delay: 50 * time.Millisecond}).Addr()
	})
	const size = 64 << 20
	b.SetBytes(size)
	for b.Loop() {
		cloud, node := e.dialStream(b)
		go func() { _ = writeBytes(node, size) }()
		if _, err := io.CopyN(io.Discard, cloud, size); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkKeystrokeBesideBulk sends keystrokes while another stream fills a link of 1 MB/s and 20 ms.
func BenchmarkKeystrokeBesideBulk(b *testing.B) {
	e := startPairOver(b, tunnel.Config{}, tunnel.Config{}, func(addr string) string {
		return relaytest.Start(b, addr, relaytest.Config{Delay: 10 * time.Millisecond, Rate: 1e6}).Addr()
	})
	cloud, node := e.dialStream(b)
	go func() { _, _ = io.Copy(node, node) }()
	bulk, source := e.dialStream(b)
	go func() { _ = writeBytes(source, 1<<40) }() // ends with the benchmark
	go func() { _, _ = io.Copy(io.Discard, bulk) }()
	key := make([]byte, 1)
	var worst time.Duration
	for b.Loop() {
		begun := time.Now()
		if _, err := cloud.Write(key); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(cloud, key); err != nil {
			b.Fatal(err)
		}
		worst = max(worst, time.Since(begun))
	}
	b.ReportMetric(float64(worst.Milliseconds()), "worst-ms")
}
