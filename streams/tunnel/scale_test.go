package tunnel_test

import (
	"fmt"
	"io"
	"net/url"
	"runtime"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/streams/tunnel/protocol"
	"github.com/frond-edge/frond/test/kit"
)

// A thousand followed logs on one node: the package starts no goroutine for any, all of them move bytes, and everything is released.
func TestThousandStreams(t *testing.T) {
	e := startPair(t, tunnel.Config{}, tunnel.Config{})
	e.dialStream(t)
	goroutines, heap := runtime.NumGoroutine(), heapInUse()
	const streams = 1000
	var cloud, node []*tunnel.Conn
	for range streams {
		c, n, err := e.openStream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		cloud, node = append(cloud, c), append(node, n)
	}
	if n := runtime.NumGoroutine() - goroutines; n > 10 {
		t.Errorf("%d goroutines more for %d streams", n, streams)
	}
	line := make([]byte, 10<<10)
	for _, n := range node {
		if _, err := n.Write(line); err != nil { // fits into the window: there is no reader yet
			t.Fatal(err)
		}
	}
	t.Logf("%d unread streams of %d bytes take %d KiB each", streams, len(line), (heapInUse()-heap)/streams>>10)
	var g errgroup.Group
	g.SetLimit(16)
	for _, c := range cloud {
		g.Go(func() error { _, err := io.ReadFull(c, make([]byte, len(line))); return err })
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	for i := range streams {
		_ = cloud[i].Close()
		_ = node[i].Close()
	}
	kit.Eventually(t, "both ends forget the streams", func() bool {
		return sumMetric(t, e.cloudMetrics, "frond_tunnel_streams", "") == 1 && sumMetric(t, e.nodeMetrics, "frond_tunnel_streams", "") == 1
	})
	kit.Eventually(t, "memory comes back", func() bool { return heapInUse()-heap < 8<<20 })
	t.Logf("%d KiB more than before", (heapInUse()-heap)>>10)
}

// Windows grow from a pool per node and one for all, and return their growth at the end of the stream.
func TestMux_WindowsGrowFromAPool(t *testing.T) {
	const start = 64 << 10
	for name, cfg := range map[string]tunnel.Config{"of the node": {NodePool: start}, "of all": {Pool: start}} {
		t.Run(name, func(t *testing.T) {
			e := startPair(t, cfg, tunnel.Config{})
			first, from := e.dialStream(t)
			second, from2 := e.dialStream(t)
			kit.Eventually(t, "the first window has grown", func() bool { return pumpBytes(t, first, from) == 2*start })
			for range 8 {
				if size := pumpBytes(t, second, from2); size != start {
					t.Fatalf("the second window has %d bytes, and the pool had none", size)
				}
				if size := pumpBytes(t, first, from); size != 2*start {
					t.Fatalf("the first window has %d bytes", size)
				}
			}
			_ = first.Close()
			_ = from.Close()
			kit.Eventually(t, "the second window has grown", func() bool { return pumpBytes(t, second, from2) == 2*start })
		})
	}
}

// pumpBytes moves some bytes to a fast reader and returns its window.
func pumpBytes(t *testing.T, to, from *tunnel.Conn) int {
	t.Helper()
	const bytes = 1 << 20
	var g errgroup.Group
	g.Go(func() error { return writeBytes(from, bytes) })
	if _, err := io.CopyN(io.Discard, to, bytes); err != nil {
		t.Fatal(err)
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	return to.WindowSize()
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The cloud and the leaf use different servers of the hub, as in any hub of three.
func TestConn_AcrossHubServers(t *testing.T) {
	t.Parallel()
	first := startClustered(t, "hub-1", nil)
	second := startClustered(t, "hub-2", first)
	kit.Eventually(t, "routes", func() bool { return first.NumRoutes() > 0 && second.NumRoutes() > 0 })
	nodeNC := nodeConn(t, startLeaf(t, node, leafAddr(second), nil))
	d, err := tunnel.NewDialer(cloudConn(t, first.ClientURL()), tunnel.Config{KeepAlive: 500 * time.Millisecond}, tunnel.NewMetrics(nil), newLogger(t, "cloud"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := tunnel.NewServer(node, nodeNC, tunnel.Config{KeepAlive: 500 * time.Millisecond}, tunnel.NewMetrics(nil), newLogger(t, "node"))
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(port)
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, d.Start)
	startPart(t, s.Start)
	<-d.Ready()
	var g errgroup.Group
	g.Go(func() error {
		c, err := l.Accept()
		if err == nil {
			_, _ = io.Copy(c, c) // ends with the stream
			_ = c.Close()
		}
		return err
	})
	var c *tunnel.Conn
	kit.Eventually(t, "a stream through both", func() bool {
		c, err = d.Dial(t.Context(), node, port)
		return err == nil
	})
	requireEcho(t, c, c)
	second.Shutdown()
	_, err = c.Read(make([]byte, 1))
	requireBroken(t, err, protocol.CodeOffline, protocol.CodeSilent)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func startClustered(t *testing.T, name string, seed *server.Server) *server.Server {
	t.Helper()
	opts := hubOptions(name, node)
	opts.Cluster.Name, opts.Cluster.Host, opts.Cluster.Port = "hub", "127.0.0.1", server.RANDOM_PORT
	if seed != nil {
		opts.Routes = []*url.URL{{Scheme: "nats-route", Host: fmt.Sprint(seed.ClusterAddr())}}
	}
	return startServer(t, opts)
}
