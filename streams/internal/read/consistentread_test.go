package read_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// simulateLaggingReplica makes a stopped replica answer the direct gets of the stream of desired state, through answer. The server itself
// answers none any more, as if all direct gets went to that replica.
func simulateLaggingReplica(t *testing.T, hub *server.Server, answer func(request *nats.Msg)) {
	t.Helper()
	nc := streamstest.Connect(t, hub)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	cfg := topology.HubTopology(1, subject.Layout{}).Streams[0]
	cfg.AllowDirect = false
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	sub, err := nc.Subscribe("$JS.API.DIRECT.GET."+subject.DesiredStream, answer)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Unsubscribe() })
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
}

// answerNothing answers like a replica that has nothing of the node.
func answerNothing(t *testing.T) func(*nats.Msg) {
	t.Helper()
	return func(request *nats.Msg) {
		if err := request.RespondMsg(&nats.Msg{Header: nats.Header{"Status": {"404"}, "Description": {"No Results"}}}); err != nil {
			t.Error(err)
		}
	}
}

// answerOnlyFirst answers like a replica that has seen the first message only.
func answerOnlyFirst(t *testing.T, first wire.Message) func(*nats.Msg) {
	t.Helper()
	return func(request *nats.Msg) {
		object := &nats.Msg{Data: first.Object, Header: nats.Header{
			"Nats-Subject": {subject.Of(subject.Desired, first.Node, first.Key)}, "Nats-Sequence": {"1"}, "Nats-Num-Pending": {"0"},
			"Frond-Version": {"1"}, "Frond-Op": {"apply"}, "Frond-RV": {first.Version}, "Frond-Time": {"2026-01-01T00:00:00Z"},
		}}
		end := &nats.Msg{Header: nats.Header{"Status": {"204"}, "Nats-Num-Pending": {"0"}, "Nats-UpTo-Sequence": {"1"}}}
		for _, msg := range []*nats.Msg{object, end} {
			if err := request.RespondMsg(msg); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestPublisher_HeldIgnoresLaggingReplica(t *testing.T) {
	for name, replica := range map[string]func(t *testing.T) func(*nats.Msg){
		"nothing": answerNothing,
		"only the first": func(t *testing.T) func(*nats.Msg) {
			t.Helper()
			return answerOnlyFirst(t, streamstest.DesiredMessage("a", "1"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			hub := streamstest.Hub(t)
			publisher, err := publish.NewPublisher(streamstest.Connect(t, hub), subject.Layout{}, metrics.New(nil))
			if err != nil {
				t.Fatal(err)
			}
			one, err := publisher.Publish(t.Context(), streamstest.DesiredMessage("a", "1"), 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := publisher.Publish(t.Context(), streamstest.DesiredMessage("a", "2"), one); err != nil {
				t.Fatal(err)
			}
			if _, err := publisher.Publish(t.Context(), streamstest.DesiredMessage("b", "1"), 0); err != nil {
				t.Fatal(err)
			}
			var asked atomic.Int32
			answer := replica(t)
			simulateLaggingReplica(t, hub, func(request *nats.Msg) { asked.Add(1); answer(request) })
			held, err := publisher.Held(t.Context(), "edge.1")
			if err != nil {
				t.Fatal(err)
			}
			if a, b := held[streamstest.ConfigMapKey("a")], held[streamstest.ConfigMapKey("b")]; len(held) != 2 || a.Version != "2" || a.Sequence != 2 || b.UID != "uid-b" {
				t.Errorf("held %+v", held)
			}
			if asked.Load() == 0 {
				t.Error("the replica was not asked, so nothing is shown")
			}
			if held, err := publisher.Held(t.Context(), "edge.2"); name == "nothing" && (err != nil || len(held) != 0) {
				t.Errorf("of a node without objects: %+v, %v", held, err)
			}
		})
	}
}

// A full snapshot deletes the objects missing from it, so it must not come from a lagging replica.
func TestAttacher_FullSnapshotIgnoresLaggingReplica(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, true)
	marker := streamstest.DesiredMessage("a", "1")
	marker.Key = wire.SnapshotMarker()
	if got := cloud.PublishNext(t, marker); got != 1 {
		t.Fatalf("the marker has sequence %d", got)
	}
	for i := range 5 {
		cloud.PublishNext(t, streamstest.DesiredMessage(fmt.Sprint("o", i), "1"))
	}
	simulateLaggingReplica(t, hub, answerOnlyFirst(t, marker))
	store := streamstest.NewMemoryStore()
	store.Objects[streamstest.ConfigMapKey("o3")] = streamstest.DesiredMessage("o3", "1")
	store.At.StreamEpoch, store.At.Sequence = "another life", 7
	missed := make(chan struct{}, 1)
	store.OnChange = func() {
		if _, ok := store.Objects[streamstest.ConfigMapKey("o3")]; !ok {
			select {
			case missed <- struct{}{}:
			default:
			}
		}
	}
	streamstest.StartNode(t, hub, store, streamstest.NewSwitchableLink())
	kit.Eventually(t, "the snapshot", func() bool { return store.ObjectCount() == 5 })
	if len(missed) != 0 {
		t.Error("an object was deleted for a moment")
	}
}
