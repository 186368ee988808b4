package cloud

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/internal/kubetest"
	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/streams/streamstest"
)

// silent is a bucket whose first watch hears nobody, as one does whose server died.
type silent struct {
	jetstream.KeyValue
	watches atomic.Int64
}

func (s *silent) WatchAll(ctx context.Context, opts ...jetstream.WatchOpt) (jetstream.KeyWatcher, error) {
	if s.watches.Add(1) == 1 {
		return s.Watch(ctx, "nobody", opts...)
	}
	return s.KeyValue.WatchAll(ctx, opts...)
}

// TestAWatchThatFellSilentIsGivenUp: without a new watch the replica would take itself for cut off, and write nothing.
func TestAWatchThatFellSilentIsGivenUp(t *testing.T) {
	js, err := jetstream.New(streamstest.Connect(t, streamstest.Hub(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), js, streams.Hub(1)); err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(t.Context(), streams.MembersBucket)
	if err != nil {
		t.Fatal(err)
	}
	bucket := &silent{KeyValue: kv}
	m := NewMembers("a", bucket, zaptest.NewLogger(t))
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return m.Start(ctx) })
	kubetest.Eventually(t, time.Minute, func() error {
		if !m.Fresh() || !m.Owns("edge-1") {
			return errors.New("the replica hears nobody")
		}
		return nil
	})
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if n := bucket.watches.Load(); n < 2 {
		t.Errorf("%d watches", n)
	}
}
