package deliver_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// nodesOfPartitions returns one node of each partition.
func nodesOfPartitions(l subject.Layout) []string {
	nodes := make([]string, len(l.DesiredStreams()))
	for i := 0; slices.Contains(nodes, ""); i++ {
		node := fmt.Sprint("edge.", i)
		nodes[l.Partition(node)] = node
	}
	return nodes
}

// Nodes of different partitions list, watch and ack alike, each in the stream of its own, and a payload that their links take only in
// pieces arrives, too.
func TestDelivery_NodesOfEachPartition(t *testing.T) {
	layout := streamstest.Layout(2)
	hub := streamstest.PartitionedHub(t, 2)
	cloud := streamstest.StartPartitionedCloud(t, streamstest.Connect(t, hub), layout, false)
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	of := func(node string, m wire.Message) wire.Message { m.Node = node; return m }
	for _, node := range nodesOfPartitions(layout) {
		cloud.PublishNext(t, of(node, streamstest.DesiredMessage("a", "1")))
		cloud.PublishNext(t, of(node, streamstest.DesiredMessage("b", "1")))
		store := streamstest.NewMemoryStore()
		streamstest.StartNamedNode(t, hub, node, store, streamstest.NewSwitchableLink())
		kit.Eventually(t, "snapshot of "+node, func() bool { return store.ObjectOf("a") == `{"v":"1"}` && store.ObjectOf("b") == `{"v":"1"}` })
		cloud.PublishNext(t, of(node, streamstest.DesiredMessage("a", "2")))
		last := cloud.PublishNext(t, of(node, streamstest.TombstoneMessage("b")))
		kit.Eventually(t, "changes of "+node, func() bool { return store.ObjectOf("a") == `{"v":"2"}` && store.ObjectCount() == 1 })
		kit.Eventually(t, "acks of "+node, func() bool {
			consumer, err := js.Consumer(t.Context(), layout.DesiredStream(node), wire.Escape(node))
			if err != nil {
				return false
			}
			floor := consumer.CachedInfo().AckFloor // of the consumer, 0: nothing was acked, but attached again
			return floor.Stream == last && floor.Consumer > 0 && consumer.CachedInfo().NumAckPending == 0
		})
		if newer, err := cloud.Publisher.Newer(t.Context(), node, last-1); err != nil || !newer {
			t.Errorf("newer for %s: %v, %v", node, newer, err)
		}
		a := streamstest.DesiredMessage("a", "2").Key
		if err := cloud.Publisher.Purge(t.Context(), node, a, last); err != nil {
			t.Fatal(err)
		}
		if held, err := cloud.Publisher.Held(t.Context(), node); err != nil || len(held) != 1 || held[a].Sequence != 0 {
			t.Errorf("after a purge the stream holds %v for %s, %v; want the tombstone alone", held, node, err)
		}
	}
	for _, name := range layout.DesiredStreams() {
		stream, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if state := stream.CachedInfo().State; state.Msgs != 1 || state.Consumers != 1 {
			t.Errorf("%s holds %d messages and %d consumers, want 1 and 1", name, state.Msgs, state.Consumers)
		}
	}
}

// The expected last sequence of a subject holds for the subject under which a partition stores a message.
func TestPublisher_RefusesStaleWriterOnEachPartition(t *testing.T) {
	layout := streamstest.Layout(2)
	cloud := streamstest.StartPartitionedCloud(t, streamstest.Connect(t, streamstest.PartitionedHub(t, 2)), layout, false)
	for _, node := range nodesOfPartitions(layout) {
		m := streamstest.DesiredMessage("a", "1")
		m.Node = node
		cloud.PublishNext(t, m)
		m.Version = "2"
		m.Time = m.Time.Add(1)
		if sequence, err := cloud.Publisher.Publish(t.Context(), m, 0); err == nil {
			t.Errorf("%s: a writer that knows no message stored %d", node, sequence)
		}
	}
}

// answerWait is how long a request may take that should have no answer.
const answerWait = 300 * time.Millisecond

// A node reaches the consumer of no node of another partition, and no stream of one by name.
func TestDelivery_OtherPartitionIsOutOfReach(t *testing.T) {
	layout := streamstest.Layout(2)
	hub := streamstest.PartitionedHub(t, 2)
	cloud := streamstest.StartPartitionedCloud(t, streamstest.Connect(t, hub), layout, false)
	nodes := nodesOfPartitions(layout)
	thief, victim := nodes[0], nodes[1]
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	m := streamstest.DesiredMessage("a", "1")
	m.Node = victim
	cloud.PublishNext(t, m)
	// A consumer with the thief's name on the victim's stream is what the thief's own crossing must not lead to.
	for _, name := range []string{thief, victim} {
		if _, err := js.CreateConsumer(t.Context(), layout.DesiredStream(victim), jetstream.ConsumerConfig{
			Durable: wire.Escape(name), FilterSubject: subject.Filter(subject.Desired, victim), AckPolicy: jetstream.AckExplicitPolicy,
		}); err != nil {
			t.Fatal(err)
		}
	}
	nc := streamstest.Node(t, hub, thief)
	for _, subj := range []string{subject.ConsumerSubject(thief, "next"), subject.ConsumerSubject(victim, "next"), subject.ConsumerSubject(victim, "info"), "$JS.API.CONSUMER.MSG.NEXT." + layout.DesiredStream(victim) + "." + wire.Escape(victim)} {
		ctx, cancel := context.WithTimeout(t.Context(), answerWait)
		answer, err := nc.RequestWithContext(ctx, subj, []byte(`{"batch":1,"no_wait":true}`))
		cancel()
		if err == nil && len(answer.Data) != 0 && answer.Header.Get("Status") == "" {
			t.Errorf("%s: %s", subj, answer.Data)
		}
	}
	if err := nc.PublishMsg(&nats.Msg{Subject: layout.DesiredSubject(victim, m.Key), Data: []byte("evil")}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), layout.DesiredStream(victim))
	if err != nil {
		t.Fatal(err)
	}
	if last := stream.CachedInfo().State.LastSeq; last != 1 {
		t.Errorf("the victim's stream has %d messages, want 1", last)
	}
}
