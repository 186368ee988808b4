package recordstore_test

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/edged/devices/recordstore"
	"github.com/frond-edge/frond/test/kit"
)

// stall is a connection to a server whose answers can be held up, as those of a disk that stands still are.
type stall struct {
	*server.Server
	mu sync.RWMutex // locked for writing while answers are held up
}

func (s *stall) InProcessConn() (net.Conn, error) {
	conn, err := s.Server.InProcessConn()
	return stalledConn{conn, s}, err
}

type stalledConn struct {
	net.Conn
	stall *stall
}

func (c stalledConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.stall.mu.RLock()
	defer c.stall.mu.RUnlock()
	return n, err
}

// However long the disk stands still, records are not refused: neither one by one nor in a batch.
func TestStore_WaitsForTheDisk(t *testing.T) {
	ns, err := server.NewServer(&server.Options{ServerName: "s", JetStream: true, StoreDir: t.TempDir(), DontListen: true, NoSigs: true, NoLog: true})
	kit.Must(t, err)
	ns.Start()
	t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	if !ns.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server does not start")
	}
	held := &stall{Server: ns}
	nc, err := nats.Connect("", nats.InProcessServer(held))
	kit.Must(t, err)
	t.Cleanup(nc.Close)
	s, err := recordstore.Open(t.Context(), recordstore.Overrides(), nc, zaptest.NewLogger(t))
	kit.Must(t, err)
	held.mu.Lock()
	saved := make(chan error, 2)
	for _, count := range []int{3, 40} {
		change := map[string][]byte{}
		for i := range count {
			change[fmt.Sprintf("%d.%d", count, i)] = []byte("1")
		}
		go func() { saved <- s.Save(t.Context(), change) }()
	}
	select {
	case err := <-saved:
		t.Errorf("while the disk stands still: %v", err)
		saved <- err
	case <-time.After(6 * time.Second): // nats.go's own timeout is 5 s
	}
	held.mu.Unlock()
	for range 2 {
		kit.Must(t, kit.Receive(t, "the answer", saved))
	}
	if got, err := s.Load(t.Context()); err != nil || len(got) != 43 {
		t.Errorf("%d records are there, %v", len(got), err)
	}
}
