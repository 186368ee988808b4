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

// connOpener opens connected pairs; the compared transports differ in it alone.
type connOpener func(b *testing.B) (cloud, node net.Conn)

// throughTunnel opens a stream over a leaf link with TLS.
func throughTunnel(b *testing.B) connOpener {
	b.Helper()
	e := startPair(b, tunnel.Config{}, tunnel.Config{})
	return func(b *testing.B) (net.Conn, net.Conn) {
		b.Helper()
		return e.dialStream(b)
	}
}

// throughBoth opens the path of kubectl: TLS to the kubelet, through a tunnel, over a link with TLS.
func throughBoth(b *testing.B) connOpener {
	b.Helper()
	inner, certs := throughTunnel(b), selfSigned(b)
	return func(b *testing.B) (net.Conn, net.Conn) {
		b.Helper()
		cloud, node := inner(b)
		return wrapTLS(b, certs, cloud, node)
	}
}

// throughTLS opens TLS over a TCP connection of this machine: the equivalent of a second connection to the kubelet.
func throughTLS(b *testing.B) connOpener {
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
		return wrapTLS(b, certs, cloud, node)
	}
}

// transports are the compared transports, in the order of the report.
var transports = []struct {
	name string
	open func(b *testing.B) connOpener
}{{"tunnel", throughTunnel}, {"tls-in-tunnel", throughBoth}, {"tls", throughTLS}}

// totalBytes is the number of bytes that all streams move in one turn: enough that filling the path at the start does not matter.
const totalBytes = 64 << 20

// BenchmarkThroughput moves bytes towards the cloud, like logs and metrics, over each transport in turn. Other load on the machine affects
// all of them, so their ratio is more reliable than their rates.
func BenchmarkThroughput(b *testing.B) {
	for _, streams := range []int{1, 20} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			each := totalBytes / streams >> 15 << 15 // whole chunks
			to, from := make([][]net.Conn, len(transports)), make([][]net.Conn, len(transports))
			for w, way := range transports {
				open := way.open(b)
				for range streams {
					cloud, node := open(b)
					to[w], from[w] = append(to[w], cloud), append(from[w], node)
				}
			}
			took, used := make([]time.Duration, len(transports)), make([]time.Duration, len(transports))
			for b.Loop() {
				for w := range transports {
					begun, before := time.Now(), cpuTime()
					if err := moveBytes(to[w], from[w], each); err != nil {
						b.Fatal(err)
					}
					took[w] += time.Since(begun)
					used[w] += cpuTime() - before
				}
			}
			moved, last := float64(b.N*streams*each), len(transports)-1
			for w, way := range transports {
				b.ReportMetric(moved/1e6/took[w].Seconds(), way.name+"-MB/s")
				b.ReportMetric(used[w].Seconds()/(moved/1e9), way.name+"-cpu-s/GB")
				if w != last {
					b.ReportMetric(100*took[last].Seconds()/took[w].Seconds(), way.name+"-%-of-tls")
				}
			}
		})
	}
}

// moveBytes sends bytes through all connections at the same time.
func moveBytes(to, from []net.Conn, each int) error {
	var g errgroup.Group
	for i := range to {
		g.Go(func() error { return writeBytes(from[i], each) })
		g.Go(func() error { _, err := io.CopyN(io.Discard, to[i], int64(each)); return err })
	}
	return g.Wait()
}

func writeBytes(to io.Writer, bytes int) error {
	chunk := make([]byte, 32<<10) // the size that io.Copy uses
	for ; bytes > 0; bytes -= len(chunk) {
		if _, err := to.Write(chunk); err != nil {
			return err
		}
	}
	return nil
}

// cpuTime returns the CPU time used by this process.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkKeystroke sends one byte to the node and waits for its echo.
func BenchmarkKeystroke(b *testing.B) {
	for _, way := range transports {
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
	e := startPair(b, tunnel.Config{}, tunnel.Config{})
	for b.Loop() {
		cloud, node, err := e.openStream(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		_ = cloud.Close()
		_ = node.Close()
	}
}
