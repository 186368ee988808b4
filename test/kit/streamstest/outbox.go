package streamstest

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit/leaftest"
)

// StartOutbox starts a leaf and returns its outbox.
func StartOutbox(t *testing.T, dir string) (*leaftest.Leaf, *outbox.Outbox, jetstream.JetStream) {
	t.Helper()
	l := leaftest.StartLeaf(t, leaf.Config{Dir: dir})
	nc := l.Client()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := topology.EnsureLeaf(ctx, js, zaptest.NewLogger(t)); err != nil {
		t.Fatalf("the node does not come up: %v", err)
	}
	o, err := outbox.New("edge-1", "epoch", nc)
	if err != nil {
		t.Fatal(err)
	}
	return l, o, js
}
