package tunnel_test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/streams/tunnel"
)

// opener makes connected pairs; what is compared differs in it alone.
type opener func(b *testing.B) (cloud, node net.Conn)

// throughTunnel is a stream over a leaf link with TLS.
func throughTunnel(b *testing.B) opener {
	b.Helper()
	e := pair(b, tunnel.Config{}, tunnel.Config{})
	return func(b *testing.B) (net.Conn, net.Conn) {
		b.Helper()
		return e.dial(b)
	}
}

// throughBoth is what kubectl has: TLS to the kubelet, through a tunnel, over a link with TLS.
func throughBoth(b *testing.B) opener {
	b.Helper()
	inner, certs := throughTunnel(b), selfSigned(b)
	return func(b *testing.B) (net.Conn, net.Conn) {
		b.Helper()
		cloud, node := inner(b)
		return encrypted(b, certs, cloud, node)
	}
}

// throughTLS is TLS over a TCP connection of this machine: what a second connection to the kubelet would be.
func throughTLS(b *testing.B) opener {
	b.Helper()
	certs := selfSigned(b)
	l, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = l.Close() })
	return func(b *testing.B) (net.Conn, net.Conn) {
		b.Helper()
		cloud, err := new(net.Dialer).DialContext(b.Context(), "tcp", l.Addr().String())
		if err != nil {
			b.Fatal(err)
		}
		node, err := l.Accept()
		if err != nil {
			b.Fatal(err)
		}
		return encrypted(b, certs, cloud, node)
	}
}

// ways are what is compared, in the order of the report.
var ways = []struct {
	name string
	open func(b *testing.B) opener
}{{"tunnel", throughTunnel}, {"tls-in-tunnel", throughBoth}, {"tls", throughTLS}}

// total is what all streams move in one iteration: enough that filling the way at the begin of each does not count.
const total = 64 << 20

// BenchmarkThroughput moves 16 MiB per iteration in all, towards the cloud, as logs and metrics go.
func BenchmarkThroughput(b *testing.B) {
	for _, streams := range []int{1, 20} {
		for _, way := range ways {
			b.Run(fmt.Sprintf("%s/streams=%d", way.name, streams), func(b *testing.B) {
				open := way.open(b)
				var to, from []net.Conn
				for range streams {
					cloud, node := open(b)
					to, from = append(to, cloud), append(from, node)
				}
				each := total / streams >> 15 << 15 // whole chunks
				b.SetBytes(int64(streams * each))
				before := cpu()
				for b.Loop() {
					var g errgroup.Group
					for i := range streams {
						g.Go(func() error { return send(from[i], each) })
						g.Go(func() error { _, err := io.CopyN(io.Discard, to[i], int64(each)); return err })
					}
					if err := g.Wait(); err != nil {
						b.Fatal(err)
					}
				}
				gigabytes := float64(b.N) * float64(streams*each) / 1e9
				b.ReportMetric((cpu()-before).Seconds()/gigabytes, "cpu-s/GB")
			})
		}
	}
}

func send(to io.Writer, bytes int) error {
	chunk := make([]byte, 32<<10) // what io.Copy gives
	for ; bytes > 0; bytes -= len(chunk) {
		if _, err := to.Write(chunk); err != nil {
			return err
		}
	}
	return nil
}

// cpu is what this process has used.
func cpu() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkKeystroke sends one byte to the node and waits for its echo.
func BenchmarkKeystroke(b *testing.B) {
	for _, way := range ways {
		b.Run(way.name, func(b *testing.B) {
			cloud, node := way.open(b)(b)
			var g errgroup.Group
			g.Go(func() error {
				_, _ = io.Copy(node, node) // ends with the benchmark
				return nil
			})
			var trips []time.Duration
			key := make([]byte, 1)
			for b.Loop() {
				begun := time.Now()
				if _, err := cloud.Write(key); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(cloud, key); err != nil {
					b.Fatal(err)
				}
				trips = append(trips, time.Since(begun))
			}
			slices.Sort(trips)
			b.ReportMetric(float64(trips[len(trips)/2].Microseconds()), "p50-µs")
			b.ReportMetric(float64(trips[len(trips)*99/100].Microseconds()), "p99-µs")
			_ = cloud.Close()
			_ = node.Close()
			_ = g.Wait()
		})
	}
}

// BenchmarkOpen opens and closes a stream.
func BenchmarkOpen(b *testing.B) {
	e := pair(b, tunnel.Config{}, tunnel.Config{})
	for b.Loop() {
		cloud, node, err := e.open(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		_ = cloud.Close()
		_ = node.Close()
	}
}
