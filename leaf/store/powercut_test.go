package store_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/test/faultfs"
)

// crashWriter applies the stream of kill_test.go to a store until the test ends, and counts the acked writes.
type crashWriter struct {
	acked atomic.Uint64
	own   atomic.Uint64
	fault atomic.Pointer[error]
}

func (w *crashWriter) run(ctx context.Context, s *store.Store) error {
	if err := s.Replace(ctx, nil, "s1", 0); err != nil {
		return err
	}
	local := wire.Key{Resource: "pods", Namespace: "default", Name: "local"}
	for ctx.Err() == nil {
		from := s.Cursor().Sequence
		n := 1 + rand.Uint64N(3)
		if rand.Uint64N(4) == 0 {
			n = 1 + rand.Uint64N(600)
		}
		var batch []wire.Message
		for seq := from + 1; seq <= from+n; seq++ {
			batch = append(batch, crashMessage(seq))
		}
		if err := s.Apply(ctx, batch, from+n); err != nil {
			return err
		}
		w.acked.Store(from + n)
		if _, err := s.Put(ctx, local, objectJSON("l", strconv.FormatUint(from+n, 10)), nil); err != nil {
			return err
		}
		w.own.Store(from + n)
	}
	return nil
}

func (w *crashWriter) start(t *testing.T, s *store.Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := w.run(ctx, s); err != nil && ctx.Err() == nil {
			w.fault.Store(&err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
}

// waitBeyond waits for an ack after a sequence, and returns the newest acks.
func (w *crashWriter) waitBeyond(t *testing.T, seq uint64) (acked, own uint64) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		own, acked := w.own.Load(), w.acked.Load() // own first: it follows the other
		if fault := w.fault.Load(); fault != nil {
			t.Fatalf("writer: %v", *fault)
		}
		if acked > seq && own > 0 {
			return acked, own
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing acked after %d", seq)
		}
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
		}
	}
}

// After a power cut at any moment all acked writes are there, in whatever order the disk wrote the unsynced ones.
func TestPowerCut(t *testing.T) {
	cuts := 12
	if testing.Short() {
		cuts = 5
	}
	m := faultfs.Mount(t)
	n := openNode(t, m.Dir, store.Config{HighWaterFile: filepath.Join(m.Dir, "store.mark")})
	w := &crashWriter{}
	w.start(t, n.Store)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var acked, own uint64
	for i := range uint64(cuts) {
		acked, own = w.waitBeyond(t, acked+rand.Uint64N(200))
		image := m.Image((seed + i) * (i % 4)) // each fourth without any unsynced write
		after := openNode(t, image, store.Config{HighWaterFile: filepath.Join(image, "store.mark")})
		cursor := after.Cursor()
		if cursor.StreamEpoch != "s1" || cursor.Sequence < acked {
			t.Errorf("cut %d: cursor %+v after %d was acked", i, cursor, acked)
		}
		checkCrash(t, after, own)
		after.js.Conn().Close()
		after.leaf.Stop()
		if t.Failed() {
			t.Fatalf("cut %d: image %s", i, image)
		}
	}
	t.Logf("%d cuts, %d syncs, %d messages acked", cuts, m.Syncs(), acked)
}

// A message of the hub costs one sync: its record carries the cursor. More syncs are the server's own, of its index.
func TestApply_OneSyncPerMessage(t *testing.T) {
	m := faultfs.Mount(t)
	n := openNode(t, m.Dir, store.Config{HighWaterFile: filepath.Join(m.Dir, "store.mark")})
	must(t, n.Replace(t.Context(), nil, "s1", 0))
	const messages = 200
	before := m.Syncs()
	for seq := uint64(1); seq <= messages; seq++ {
		must(t, n.Apply(t.Context(), []wire.Message{applyMessage(seq, fmt.Sprint("o", seq%10), "u", "x")}, seq))
	}
	if syncs := m.Syncs() - before; syncs < messages || syncs > messages+messages/10 {
		t.Errorf("%d syncs for %d messages", syncs, messages)
	}
}

// The same with a server that does not sync: the file system really drops unsynced writes, and the store reports it.
func TestPowerCut_WithoutSync(t *testing.T) {
	m := faultfs.Mount(t)
	ns, err := server.NewServer(&server.Options{
		ServerName: "edge-1", JetStream: true, StoreDir: m.Dir, DontListen: true, NoSigs: true, NoLog: true, JetStreamMaxStore: 1 << 30,
	})
	must(t, err)
	ns.Start()
	t.Cleanup(func() { ns.Shutdown(); ns.WaitForShutdown() })
	nc, err := nats.Connect("", nats.InProcessServer(ns))
	must(t, err)
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	must(t, err)
	s, err := store.Open(t.Context(), js, store.Config{}, zap.NewNop())
	must(t, err)
	w := &crashWriter{}
	w.start(t, s)
	acked, _ := w.waitBeyond(t, 1000)
	after := openNode(t, m.Image(0), store.Config{})
	if c := after.Cursor(); c.Sequence >= acked {
		t.Errorf("cursor %+v after %d was acked: nothing was lost without a sync", c, acked)
	}
}
