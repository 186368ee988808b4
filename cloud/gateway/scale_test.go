package gateway_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/cloud/gateway"
	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

const (
	// followers is how many logs are followed concurrently, of logNodes nodes; each has a chunk that is not read for a while.
	followers, logNodes = 1000, 10
	logChunk            = 10 << 10
	// maxHeapLeft is how much of the heap may stay when all followers have gone: buffers of the hub and the leafs,
	// which are in this process, too.
	maxHeapLeft = 16 << 20
	// maxPerLog is how much memory one unread log may take, including the caller's own end, the node's and everything
	// between them in this process.
	maxPerLog = 128 << 10
)

// realTunnels implements gateway.Tunnels as in cloudcore.
type realTunnels struct{ *tunnel.Dialer }

func (r realTunnels) Dial(ctx context.Context, node string, port uint16) (net.Conn, error) {
	conn, err := r.Dialer.Dial(ctx, node, port)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

func (r realTunnels) DialAddress(ctx context.Context, node string, to netip.AddrPort) (net.Conn, error) {
	conn, err := r.Dialer.DialAddress(ctx, node, to)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// serveLogs writes a chunk to each connection, and another for each request, until the reader closes it.
func serveLogs(l *tunnel.Listener) error {
	var g errgroup.Group
	for {
		conn, err := l.Accept()
		if err != nil {
			return g.Wait() // the node has ended
		}
		g.Go(func() error {
			defer func() { _ = conn.Close() }() // it is over
			line, more := make([]byte, logChunk), make([]byte, 1)
			for {
				if _, err := conn.Write(line); err != nil {
					return nil // the reader has gone
				}
				if _, err := conn.Read(more); err != nil {
					return nil // the same
				}
			}
		})
	}
}

// newLogFixture creates a gateway in front of real tunnels to nodes that write logs.
func newLogFixture(t *testing.T) (socket string) {
	t.Helper()
	log := zaptest.NewLogger(t, zaptest.Level(zap.WarnLevel))
	hub := streamstest.Hub(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var g errgroup.Group
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	w := &gatewayFixture{nodes: map[string]gateway.Node{}}
	for i := range logNodes {
		name := fmt.Sprint("edge-", i)
		w.nodes[name] = gateway.Node{Edge: true, KubeletPort: 10250}
		s, err := tunnel.NewServer(name, streamstest.Node(t, hub, name), tunnel.Config{}, tunnel.NewMetrics(nil), log)
		if err != nil {
			t.Fatal(err)
		}
		l, err := s.Listen(10250)
		if err != nil {
			t.Fatal(err)
		}
		g.Go(func() error { return s.Start(ctx) })
		g.Go(func() error { return serveLogs(l) })
	}
	d, err := tunnel.NewDialer(streamstest.Connect(t, hub), tunnel.Config{}, tunnel.NewMetrics(nil), log)
	if err != nil {
		t.Fatal(err)
	}
	g.Go(func() error { return d.Start(ctx) })
	<-d.Ready()
	socket = socketPath(t)
	way, err := gateway.New(gateway.Config{Socket: socket}, w, w, realTunnels{d}, nil, nil, log)
	if err != nil {
		t.Fatal(err)
	}
	g.Go(func() error { return way.Start(ctx) })
	<-way.Ready()
	return socket
}

// TestGateway_FollowedLogsFreeTheirMemory: memory is bounded while the logs are not read, and freed when all followers have gone.
func TestGateway_FollowedLogsFreeTheirMemory(t *testing.T) {
	socket := newLogFixture(t)
	open := func(i int) (net.Conn, io.Reader) {
		conn := dialUnix(t, socket)
		r, refused := requestConnect(t, conn, fmt.Sprintf("edge-%d:10250", i%logNodes))
		for begun := time.Now(); refused != "" && time.Since(begun) < time.Minute; { // until the hub has announced the node's subscription
			conn = dialUnix(t, socket)
			r, refused = requestConnect(t, conn, fmt.Sprintf("edge-%d:10250", i%logNodes))
		}
		if refused != "" {
			t.Fatal(refused)
		}
		return conn, r
	}
	for i := range logNodes { // what the first stream of a node leaves behind does not count for a stream
		conn, _ := open(i)
		_ = conn.Close()
	}
	heap, goroutines := heapInUse(), runtime.NumGoroutine()
	conns, readers := make([]net.Conn, followers), make([]io.Reader, followers)
	for i := range followers {
		conns[i], readers[i] = open(i)
	}
	if took := heapInUse() - heap; took > followers*maxPerLog {
		t.Errorf("%d unread logs take %d MiB", followers, took>>20)
	} else {
		t.Logf("%d unread logs take %d KiB each, with both ends and all between them", followers, took/followers>>10)
	}
	for range 3 {
		var g sync.WaitGroup
		for i := range followers {
			g.Go(func() {
				if _, err := io.ReadFull(readers[i], make([]byte, logChunk)); err != nil {
					t.Errorf("log %d: %v", i, err)
				}
				if _, err := conns[i].Write([]byte{'m'}); err != nil {
					t.Errorf("log %d: %v", i, err)
				}
			})
		}
		g.Wait()
	}
	for i := range followers {
		_ = conns[i].Close()
	}
	clear(conns)
	clear(readers)
	kit.Eventually(t, "memory and goroutines come back", func() bool {
		left, more := heapInUse()-heap, runtime.NumGoroutine()-goroutines
		t.Logf("%d KiB and %d goroutines more than before", left>>10, more)
		return left < maxHeapLeft && more < 50
	})
}

func heapInUse() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
