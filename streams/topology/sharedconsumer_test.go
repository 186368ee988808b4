package topology_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// listConsumers returns the names of the consumers of a stream.
func listConsumers(t *testing.T, js jetstream.JetStream, stream string) []string {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	lister := s.ConsumerNames(t.Context())
	var names []string
	for name := range lister.Name() {
		names = append(names, name)
	}
	if lister.Err() != nil {
		t.Fatal(lister.Err())
	}
	return names
}

// requireOneConsumer fails unless a stream has one consumer with an unguessable name, and returns the name.
func requireOneConsumer(t *testing.T, js jetstream.JetStream, stream string) string {
	t.Helper()
	names := listConsumers(t, js, stream)
	if len(names) != 1 || !strings.HasPrefix(names[0], "cloudcore-") || len(names[0]) < len("cloudcore-")+22 {
		t.Fatalf("%s has the consumers %q", stream, names)
	}
	return names[0]
}

// deleteConsumers deletes the consumers of a stream.
func deleteConsumers(t *testing.T, js jetstream.JetStream, stream string) {
	t.Helper()
	for _, name := range listConsumers(t, js, stream) {
		if err := js.DeleteConsumer(t.Context(), stream, name); err != nil {
			t.Fatal(err)
		}
	}
}

// Replicas that start at once, on a hub of an older version or on an empty one, agree on one consumer per stream; it stays the same.
func TestEnsure_ReplicasAgreeOnOneSharedConsumer(t *testing.T) {
	hub := streamstest.Hub(t)
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	var conns []jetstream.JetStream
	for range 4 {
		other, err := jetstream.New(streamstest.Connect(t, hub))
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, other)
	}
	known := map[string]bool{}
	for round := range 6 {
		for _, stream := range []string{subject.ReportStream, subject.EventStream} {
			deleteConsumers(t, js, stream)
			if round%2 == 1 {
				old := jetstream.ConsumerConfig{Durable: "cloudcore", AckPolicy: jetstream.AckExplicitPolicy}
				if _, err := js.CreateConsumer(t.Context(), stream, old); err != nil {
					t.Fatal(err)
				}
			}
		}
		var g errgroup.Group
		for _, other := range conns {
			g.Go(func() error { return topology.Ensure(t.Context(), other, topology.HubTopology(1, subject.Layout{})) })
		}
		if err := g.Wait(); err != nil {
			t.Fatal(err)
		}
		for _, stream := range []string{subject.ReportStream, subject.EventStream} {
			name := requireOneConsumer(t, js, stream)
			if known[name] {
				t.Errorf("the name %s is not new", name)
			}
			known[name] = true
			if err := topology.Ensure(t.Context(), js, topology.HubTopology(1, subject.Layout{})); err != nil {
				t.Fatal(err)
			}
			if again := requireOneConsumer(t, js, stream); again != name {
				t.Errorf("%s became %s", name, again)
			}
		}
	}
}

// A consumer that Frond did not create is not deleted, and the error names it.
func TestEnsure_ForeignConsumerIsReported(t *testing.T) {
	js, err := jetstream.New(streamstest.Connect(t, streamstest.Hub(t)))
	if err != nil {
		t.Fatal(err)
	}
	deleteConsumers(t, js, subject.ReportStream)
	if _, err := js.CreateConsumer(t.Context(), subject.ReportStream, jetstream.ConsumerConfig{Durable: "mine", AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.HubTopology(1, subject.Layout{})); err == nil || !strings.Contains(err.Error(), "consumer mine") {
		t.Errorf("error %v", err)
	}
	if names := listConsumers(t, js, subject.ReportStream); !slices.Equal(names, []string{"mine"}) {
		t.Errorf("consumers %q", names)
	}
}

// A ReportConsumer continues when its consumer is replaced: after an upgrade, and after a deletion by hand. Messages that were delivered
// and not acked are delivered again.
func TestReportConsumer_SurvivesReplacedConsumer(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.Hub(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	deleteConsumers(t, js, subject.ReportStream)
	old, err := js.CreateConsumer(t.Context(), subject.ReportStream, jetstream.ConsumerConfig{Durable: "cloudcore", AckPolicy: jetstream.AckExplicitPolicy})
	if err != nil {
		t.Fatal(err)
	}
	streamstest.PutReports(t, nc, "edge.1", 0, 1)
	if _, err := old.Next(); err != nil { // held by an older version, for 30 s
		t.Fatal(err)
	}
	keeper, err := topology.NewReconciler(nc, 1, subject.Layout{}, func() {}, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, keeper.Start)
	taken := make(chan string, 100)
	streamstest.StartReports(t, nc, func(_ context.Context, m wire.Message) error {
		taken <- m.Key.Name
		return nil
	}, nil)
	await := func(want string) {
		t.Helper()
		kit.Eventually(t, "report "+want, func() bool {
			select {
			case name := <-taken:
				return name == want
			default:
				return false
			}
		})
	}
	await("o0")
	name := requireOneConsumer(t, js, subject.ReportStream)
	deleteConsumers(t, js, subject.ReportStream)
	streamstest.PutReports(t, nc, "edge.1", 1, 1)
	await("o1")
	if again := requireOneConsumer(t, js, subject.ReportStream); again == name {
		t.Errorf("the name %s is back", name)
	}
}
