package hubconf_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/hubtest"
)

// forgeAcks makes the hub answer a stolen key's pulls, which find nothing, with replies that act as acks of a consumer's first messages.
func (w *testHub) forgeAcks(r *hubtest.RawLeaf, stream, consumer string) {
	w.Helper()
	w.eventually("an ack of "+consumer, func() bool {
		for seq := range 4 {
			ack := fmt.Sprintf("$JS.ACK.%s.%s.1.%d.%d.1.0", stream, consumer, seq+1, seq+1)
			r.Publish("consumer."+thief+".next", ack, `{"batch":1,"no_wait":true}`)
		}
		return len(w.messagesWith("$JS.ACK."+stream+"."+consumer+".1.4.")) > 1 // the first may be a delivery, and not empty
	})
}

// countStored returns the number of messages in a stream.
func (w *testHub) countStored(stream string) uint64 {
	w.Helper()
	s, err := w.js.Stream(w.Context(), stream)
	if err != nil {
		w.Fatal(err)
	}
	return s.CachedInfo().State.Msgs
}

// onlyConsumer returns a stream's only consumer.
func (w *testHub) onlyConsumer(stream string) jetstream.Consumer {
	w.Helper()
	s, err := w.js.Stream(w.Context(), stream)
	if err != nil {
		w.Fatal(err)
	}
	name, found := <-s.ConsumerNames(w.Context()).Name()
	if !found {
		w.Fatalf("%s has no consumer", stream)
	}
	c, err := s.Consumer(w.Context(), name)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

// nats-server passes a reply whose subject begins with $JS.ACK unchanged from one account to another, so a stolen key can ack messages of
// others if it can name the consumer. The name of the consumer that cloudcores share cannot be guessed.
func TestHub_StolenKeyCannotAckForeignReports(t *testing.T) {
	w := startTestHub(t)
	w.recordMessages()
	_, other := otherNodes()
	r := w.hub.ConnectRawLeaf(2, thief, w.thiefKey)
	r.Send("LS+ " + subject.InboxPrefix(thief) + ".>")
	for stream, subj := range map[string]string{
		subject.ReportStream: "report." + other + ".core.pods.default.p",
		subject.EventStream:  "event." + other + ".core.events.default.e",
	} {
		w.eventually("a report", func() bool {
			_, err := w.honestConns[other].Request(subj, []byte("status"), time.Second)
			return err == nil
		})
		consumer := w.onlyConsumer(stream)
		w.eventually("a delivery", func() bool { // held by a cloudcore, and never acked by it
			_, err := consumer.Next(jetstream.FetchMaxWait(2 * time.Second))
			return err == nil
		})
		for _, guess := range []string{"cloudcore", "cloudcore-", "*", "cloudcore-*", ">", thief, other} {
			w.forgeAcks(r, stream, guess)
		}
		waitForStragglers()
		if w.countStored(stream) != 1 {
			t.Errorf("a report of another gateway has vanished from %s", stream)
		}
		// With the name the attack works. If this fails, nats-server has closed the hole, and names need no random part.
		w.forgeAcks(r, stream, consumer.CachedInfo().Name)
		w.eventually("nothing waits in "+stream, func() bool { return w.countStored(stream) == 0 })
	}
}
