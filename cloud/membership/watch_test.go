package membership

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// mutedBucket is a bucket whose existing watches receive nothing once they are muted, as when their server died.
type mutedBucket struct {
	jetstream.KeyValue
	watches, muted atomic.Int64
}

func (s *mutedBucket) WatchAll(ctx context.Context, opts ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	w, err := s.KeyValue.WatchAll(ctx, opts...)
	return &mutedWatch{KeyWatcher: w, of: s, number: s.watches.Add(1)}, err
}

// mutedWatch is a watch with its number.
type mutedWatch struct {
	jetstream.KeyWatcher
	of     *mutedBucket
	number int64
}

func (w *mutedWatch) Updates() <-chan jetstream.KeyValueEntry {
	if w.number <= w.of.muted.Load() {
		return nil
	}
	return w.KeyWatcher.Updates()
}

// TestMembers_ReopensStalledWatch: without a new watch the replica would consider itself cut off, and write nothing.
// The first watch receives nothing from its start, the next ones become silent later.
func TestMembers_ReopensStalledWatch(t *testing.T) {
	js, err := jetstream.New(streamstest.Connect(t, streamstest.Hub(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.HubTopology(1, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), subject.MembersBucket)
	if err != nil {
		t.Fatal(err)
	}
	bucket := &mutedBucket{KeyValue: kv}
	bucket.muted.Store(1)
	m := New("a", bucket, nil, zaptest.NewLogger(t))
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return m.Start(ctx) })
	for range 2 {
		kit.Succeeds(t, time.Minute, func() error {
			if !m.LeaseValid() || !m.Owns("edge-1") {
				return errors.New("the replica hears nobody")
			}
			return nil
		})
		muted := bucket.watches.Load()
		bucket.muted.Store(muted)
		kit.Succeeds(t, time.Minute, func() error {
			if bucket.watches.Load() == muted {
				return errors.New("the silent watch is kept")
			}
			return nil
		})
	}
	watches := bucket.watches.Load()
	m.RestartWatch() // of a watch that is not silent
	kit.Succeeds(t, time.Minute, func() error {
		if bucket.watches.Load() == watches {
			return errors.New("no other watch was started")
		}
		return nil
	})
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
