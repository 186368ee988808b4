package streams_test

import (
	"testing"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/streams/streamstest"
)

// A node that hears that its consumer's server died attaches again at once, and does not care for the death of another.
func TestTheDeathOfAServerEndsThePullsFromIt(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemory()
	nc := streamstest.Connect(t, hub, nats.CustomInboxPrefix(streams.InboxPrefix("edge.1")))
	delivery, err := streams.NewDelivery("edge.1", nc, store, newLink(), streams.NewMetrics(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	run(t, delivery.Start)
	arrives := func(v string) {
		t.Helper()
		cloud.publish(t, apply("a", v))
		streamstest.Eventually(t, "version "+v, func() bool { return version(store.get("a")) == v })
	}
	attaches := func() float64 {
		return counted(t, cloud.metrics, "frond_attaches_total", "changes") + counted(t, cloud.metrics, "frond_attaches_total", "full")
	}
	arrives("1")
	arrives("2") // by the pull, for certain
	before := attaches()
	delivery.ServerDied("another")
	arrives("3")
	if now := attaches(); now != before {
		t.Errorf("%v attaches for the death of another server", now-before)
	}
	delivery.ServerDied("hub")
	streamstest.Eventually(t, "another attach", func() bool { return attaches() > before })
	arrives("4")
}
