package streamstest

import (
	"context"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/chunk"
	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
)

// WaitWithin waits longer than Eventually.
func WaitWithin(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-ticker.C:
		}
	}
}

// StartPart starts a part and stops it before the connections close.
func StartPart(t *testing.T, start func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return start(ctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Errorf("Start: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// StartNode starts the delivery of the node edge.1 into a store. It ends with the test.
func StartNode(t *testing.T, hub *server.Server, store deliver.Store, link link.Link) *prometheus.Registry {
	t.Helper()
	return StartNamedNode(t, hub, "edge.1", store, link)
}

// StartNamedNode starts a node's delivery into a store. It ends with the test.
func StartNamedNode(t *testing.T, hub *server.Server, node string, store deliver.Store, link link.Link) *prometheus.Registry {
	t.Helper()
	nc := Node(t, hub, node)
	reg := prometheus.NewRegistry()
	delivery, err := deliver.NewDelivery(deliver.Config{Node: node}, nc, store, link, metrics.New(reg), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	StartPart(t, delivery.Start)
	return reg
}

// PublishNext publishes a message after the last one of its key.
func (c CloudSide) PublishNext(t *testing.T, m wire.Message) uint64 {
	t.Helper()
	held, err := c.Publisher.Held(t.Context(), m.Node)
	if err != nil {
		t.Fatal(err)
	}
	sequence, err := c.Publisher.Publish(t.Context(), m, held[m.Key].Sequence)
	if err != nil {
		t.Fatal(err)
	}
	return sequence
}

// RedialMax is what the cloud's side tells nodes.
const RedialMax = 42 * time.Second

// StartCloudOver starts the cloud's side of a hub with one partition over connections of its own.
func StartCloudOver(t *testing.T, nc *nats.Conn, known bool) CloudSide {
	t.Helper()
	return StartPartitionedCloud(t, nc, subject.Layout{}, known)
}

// StartPartitionedCloud starts the cloud's side of a hub with a layout.
func StartPartitionedCloud(t *testing.T, nc *nats.Conn, layout subject.Layout, known bool) CloudSide {
	t.Helper()
	return StartAnsweringCloud(t, nc, layout, known, nil)
}

// StartAnsweringCloud starts the cloud's side of a hub with a layout, which also answers the verbs of more.
func StartAnsweringCloud(t *testing.T, nc *nats.Conn, layout subject.Layout, known bool, more map[string]call.Handler) CloudSide {
	t.Helper()
	reg := prometheus.NewRegistry()
	metrics := metrics.New(reg)
	log := zaptest.NewLogger(t)
	publisher, err := publish.NewPublisher(nc, layout, metrics)
	if err != nil {
		t.Fatal(err)
	}
	cfg := publish.AttacherConfig{
		NodeExists: func(context.Context, string) bool { return known },
		RedialMax:  func(context.Context) time.Duration { return RedialMax },
	}
	attacher, err := publish.NewAttacher(cfg, nc, layout, metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	pieces, err := chunk.NewServer(nc, layout, log)
	if err != nil {
		t.Fatal(err)
	}
	handlers := map[string]call.Handler{subject.VerbAttach: attacher.Handle, subject.VerbPiece: pieces.Handle}
	maps.Copy(handlers, more)
	calls, err := call.NewServer(nc, handlers, metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	StartPart(t, calls.Start)
	return CloudSide{Publisher: publisher, Metrics: reg}
}

// StartCloud starts the cloud's side of calls and deliveries. It ends with the test.
func StartCloud(t *testing.T, hub *server.Server, known bool) CloudSide {
	t.Helper()
	return StartCloudOver(t, Connect(t, hub), known)
}

// CloudSide is the cloud's end of a delivery.
type CloudSide struct {
	Publisher *publish.Publisher
	Metrics   *prometheus.Registry
}
