package streams_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// failingStore is a store whose disk fails once, on command; it signals before it fails.
type failingStore struct {
	*memory
	armed       atomic.Bool
	began, fail chan struct{}
}

func (s *failingStore) Apply(ctx context.Context, messages []wire.Message, sequence uint64) error {
	if s.armed.CompareAndSwap(true, false) {
		close(s.began)
		select {
		case <-s.fail:
		case <-ctx.Done():
		}
		return errors.New("disk full")
	}
	return s.memory.Apply(ctx, messages, sequence)
}

// The name of a gateway's consumer can be guessed, so a stolen key can ack messages in flight to another gateway. The cursor at the
// gateway is authoritative, not the ack: messages that it has not saved are delivered again.
func TestDelivery_ForgedAckLosesNoMessage(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := &failingStore{memory: newMemoryStore(), began: make(chan struct{}), fail: make(chan struct{})}
	startNode(t, hub, store, newSwitchableLink())
	cloud.publishNext(t, desiredMessage("a", "1"))
	streamstest.Eventually(t, "first", func() bool { return store.objectOf("a") == `{"v":"1"}` })
	store.armed.Store(true)
	sequence := cloud.publishNext(t, desiredMessage("a", "2"))
	select {
	case <-store.began:
	case <-t.Context().Done():
		t.Fatal("never delivered")
	}
	nc := streamstest.Connect(t, hub)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	streamstest.Eventually(t, "the hub takes the forged ack", func() bool {
		if err := nc.Publish(fmt.Sprintf("$JS.ACK.%s.edge_1.1.%d.1.1.0", streams.DesiredStream, sequence), nil); err != nil {
			t.Fatal(err)
		}
		c, err := js.Consumer(t.Context(), streams.DesiredStream, "edge_1")
		return err == nil && c.CachedInfo().NumAckPending == 0 && c.CachedInfo().AckFloor.Stream >= sequence
	})
	close(store.fail)
	streamstest.Eventually(t, "what was not saved", func() bool { return store.objectOf("a") == `{"v":"2"}` })
}
