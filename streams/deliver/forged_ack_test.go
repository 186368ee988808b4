package deliver_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// failingStore is a store whose disk fails once, on command; it signals before it fails.
type failingStore struct {
	*streamstest.MemoryStore
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
	return s.MemoryStore.Apply(ctx, messages, sequence)
}

// The name of a gateway's consumer can be guessed, so a stolen key can ack messages in flight to another gateway. The cursor at the
// gateway is authoritative, not the ack: messages that it has not saved are delivered again.
func TestDelivery_ForgedAckLosesNoMessage(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	store := &failingStore{MemoryStore: streamstest.NewMemoryStore(), began: make(chan struct{}), fail: make(chan struct{})}
	streamstest.StartNode(t, hub, store, streamstest.NewSwitchableLink())
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "1"))
	kit.Eventually(t, "first", func() bool { return store.ObjectOf("a") == `{"v":"1"}` })
	store.armed.Store(true)
	sequence := cloud.PublishNext(t, streamstest.DesiredMessage("a", "2"))
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
	kit.Eventually(t, "the hub takes the forged ack", func() bool {
		if err := nc.Publish(fmt.Sprintf("$JS.ACK.%s.edge_1.1.%d.1.1.0", subject.DesiredStream, sequence), nil); err != nil {
			t.Fatal(err)
		}
		c, err := js.Consumer(t.Context(), subject.DesiredStream, "edge_1")
		return err == nil && c.CachedInfo().NumAckPending == 0 && c.CachedInfo().AckFloor.Stream >= sequence
	})
	close(store.fail)
	kit.Eventually(t, "what was not saved", func() bool { return store.ObjectOf("a") == `{"v":"2"}` })
}
