package hubconf_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit/hubtest"
)

// On a hub with partitions a stolen key reaches no other partition: neither a consumer with its own name there, nor its victim's consumer, its
// acks or its stream. Its own partition serves it, and so the other's does the victim.
func TestHub_StolenKeyReachesNoOtherPartition(t *testing.T) {
	layout := subject.Layout{Cells: cells, Partitions: 2}
	w := &testHub{T: t, hub: hubtest.StartPartitioned(t, 3, layout.Cells, layout.Partitions), honestConns: map[string]*nats.Conn{}}
	victim := "gw-0"
	for i := 1; layout.Partition(victim) == layout.Partition(thief); i++ {
		victim = fmt.Sprint("gw-", i)
	}
	keys, pairs := map[string]string{}, map[string]nkeys.KeyPair{}
	for _, node := range []string{thief, victim} {
		var public string
		pairs[node], public = hubtest.NewKey(t)
		keys[public] = node
	}
	w.hub.AnswerCallout(0, keys)
	w.cloud = w.hub.Connect(0, "cloudcore")
	var err error
	if w.js, err = jetstream.New(w.cloud); err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), w.js, topology.HubTopology(3, layout)); err != nil {
		t.Fatal(err)
	}
	foreign := layout.DesiredStream(victim)
	for _, c := range []struct{ stream, name, of string }{{layout.DesiredStream(thief), thief, thief}, {foreign, victim, victim}, {foreign, thief, victim}} {
		if _, err := w.js.CreateConsumer(t.Context(), c.stream, jetstream.ConsumerConfig{
			Durable: c.name, FilterSubject: subject.Filter(subject.Desired, c.of), AckPolicy: jetstream.AckExplicitPolicy, MemoryStorage: true, Replicas: 1,
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range []string{thief, victim} {
		subj := strings.Replace(subject.PartitionSubjects(layout.Partition(node)), ">", node+".core.secrets.default.s", 1)
		if _, err := w.js.Publish(t.Context(), subj, []byte("secret of "+node)); err != nil {
			t.Fatal(err)
		}
		w.honestConns[node] = w.connectLeaf("tls", w.hub.LeafAddr(1), node, pairs[node])
	}
	pull := func(node string) (got *nats.Msg) {
		w.eventually("a delivery to "+node, func() bool {
			m, err := w.honestConns[node].Request("consumer."+node+".next", []byte(`{"batch":1,"expires":1000000000}`), 2*time.Second)
			got = m
			return err == nil && strings.HasPrefix(m.Reply, "$JS.ACK.")
		})
		return got
	}
	for _, node := range []string{thief, victim} { // the thief's own name leads to its own partition, although the other one has such a consumer
		if m := pull(node); string(m.Data) != "secret of "+node || !strings.HasPrefix(m.Reply, "$JS.ACK."+layout.DesiredStream(node)+"."+node+".") {
			t.Errorf("%s pulled %q, to be acked at %s", node, m.Data, m.Reply)
		}
	}
	var attempts []string
	for _, form := range []string{
		"consumer.%[2]s.next", "consumer.%[2]s.info", "consumer.%[2]s.ack.1.1.1.1.0", "$JS.API.CONSUMER.MSG.NEXT.%[1]s.%[2]s", "$JS.API.CONSUMER.INFO.%[1]s.%[2]s",
		"$JS.hub.API.CONSUMER.MSG.NEXT.%[1]s.%[2]s", "$JS.ACK.%[1]s.%[2]s.1.1.1.1.0",
		"$JS.API.DIRECT.GET.%[1]s.desired.%[2]s.core.secrets.default.s", "desired-1.%[2]s.core.secrets.default.s",
		"desired.%[2]s.core.secrets.default.s",
	} {
		attempts = append(attempts, fmt.Sprintf(form, foreign, victim), fmt.Sprintf(form, foreign, thief))
	}
	attempts = append(attempts, "hub.layout.x")
	attempts = slices.DeleteFunc(attempts, func(subj string) bool { return strings.HasPrefix(subj, "consumer."+thief+".") })
	links := map[string]*hubtest.RawLeaf{}
	for i, subj := range attempts {
		r := w.hub.ConnectRawLeaf(i%3, thief, pairs[thief])
		r.Send("LS+ " + subject.InboxPrefix(thief) + ".>")
		r.Publish(subj, subject.InboxPrefix(thief)+".answer", "evil")
		r.Send("PING")
		links[subj] = r
	}
	for subj, r := range links {
		if !strings.HasPrefix(subj, "$JS.ACK.") { // the hub lets a leaf send these, to nobody
			w.eventually("the link is closed for "+subj, func() bool { return r.CloseReason() != "" })
		}
	}
	waitForStragglers()
	for subj, r := range links {
		if got := r.Messages(); len(got) != 0 {
			t.Errorf("%s is answered: %q", subj, got)
		}
	}
	stream, err := w.js.Stream(t.Context(), foreign)
	if err != nil {
		t.Fatal(err)
	}
	c, err := w.js.Consumer(t.Context(), foreign, victim)
	if err != nil {
		t.Fatal(err)
	}
	if last, info := stream.CachedInfo().State.LastSeq, c.CachedInfo(); last != 1 || info.NumAckPending != 1 || info.AckFloor.Stream != 0 {
		t.Errorf("the victim's stream ends at %d, its consumer has %d unacked after %d; want 1, 1 and 0", last, info.NumAckPending, info.AckFloor.Stream)
	}
}
