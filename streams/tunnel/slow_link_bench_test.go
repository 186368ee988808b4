package tunnel_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/frond-edge/frond/streams/tunnel"
)

// startDelayRelay relays TCP to target and delays every byte, both ways; rate bounds bytes per second, 0 is no limit.
func startDelayRelay(t testing.TB, target string, oneWay time.Duration, rate int) (addr string) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	wg.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := new(net.Dialer).DialContext(t.Context(), "tcp", target)
			if err != nil {
				_ = from.Close()
				return
			}
			mu.Lock()
			open = append(open, from, to)
			mu.Unlock()
			wg.Go(func() { relayDelayed(to, from, oneWay, rate) })
			wg.Go(func() { relayDelayed(from, to, oneWay, rate) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l.Addr().String()
}

func relayDelayed(to, from net.Conn, oneWay time.Duration, rate int) {
	type piece struct {
		data []byte
		at   time.Time
	}
	line := make(chan piece, 1<<14) // more than any window in pieces of a read
	go func() {
		defer close(line)
		next := time.Now()
		for {
			buf := make([]byte, 16<<10)
			n, err := from.Read(buf)
			if n > 0 {
				if now := time.Now(); next.Before(now) {
					next = now
				}
				if rate > 0 {
					next = next.Add(time.Duration(float64(n) / float64(rate) * 1e9))
				}
				line <- piece{buf[:n], next.Add(oneWay)}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range line {
		<-time.After(time.Until(p.at))
		if _, err := to.Write(p.data); err != nil {
			_ = from.Close()
		}
	}
	_ = to.Close()
}

// BenchmarkFarLink moves 64 MiB towards the cloud over a link with a round trip of 100 ms, from a new stream's small window on.
func BenchmarkFarLink(b *testing.B) {
	e := startPairOver(b, tunnel.Config{}, tunnel.Config{}, func(addr string) string { return startDelayRelay(b, addr, 50*time.Millisecond, 0) })
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
	e := startPairOver(b, tunnel.Config{}, tunnel.Config{}, func(addr string) string { return startDelayRelay(b, addr, 10*time.Millisecond, 1e6) })
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
