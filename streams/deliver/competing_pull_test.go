package deliver_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// A change arrives at once although an earlier agent has an open pull: the agent before a crash, or one that ran on a copy of the disk and
// was fenced. A hub server cannot see that a subscriber behind another server is gone.
func TestAttacher_EarlierPullReceivesNothing(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(nc *nats.Conn, stop func()){
		"fenced": func(_ *nats.Conn, stop func()) { stop() },
		"killed": func(nc *nats.Conn, stop func()) {
			nc.Close() // before it can withdraw its request
			stop()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			js, _ := startHubCluster(t, t.TempDir(), false)
			awaitTopology(t, js)
			cloud := streamstest.StartCloudOver(t, js.Conn(), false)
			cloud.PublishNext(t, streamstest.DesiredMessage("a", "0"))
			agent := func(url string) (*streamstest.MemoryStore, *nats.Conn, func()) {
				t.Helper()
				nc, err := nats.Connect(url, nats.UserInfo("edge.1", ""), nats.CustomInboxPrefix(subject.InboxPrefix("edge.1")))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(nc.Close)
				store := streamstest.NewMemoryStore()
				delivery, err := deliver.NewDelivery(deliver.Config{Node: "edge.1"}, nc, store, streamstest.NewSwitchableLink(), metrics.New(nil), zaptest.NewLogger(t))
				if err != nil {
					t.Fatal(err)
				}
				stop := streamstest.StartPart(t, delivery.Start)
				kit.Eventually(t, "the agent is served", func() bool { return store.ObjectOf("a") != "" })
				kit.Eventually(t, "the agent asks for what comes next", func() bool { return countOpenPulls(t, js) > 0 })
				return store, nc, stop
			}
			first, _, _ := agent(js.Conn().ConnectedUrl())
			_, nc, stop := agent(otherHubServer(t, js))
			leave(nc, stop)
			// The server serves open pulls in turn.
			for i := range 4 {
				want := streamstest.DesiredMessage("a", strconv.Itoa(i+1))
				cloud.PublishNext(t, want)
				began := time.Now()
				kit.Eventually(t, "the change arrives", func() bool { return first.ObjectOf("a") == string(want.Object) })
				if took := time.Since(began); took > 15*time.Second { // the hub waits for an ack for twice as long
					t.Errorf("change %d arrived after %s", i, took)
				}
			}
		})
	}
}

// countOpenPulls returns the number of open pulls on the node's consumer.
func countOpenPulls(t *testing.T, js jetstream.JetStream) int {
	t.Helper()
	consumer, err := js.Consumer(t.Context(), subject.DesiredStream, "edge_1")
	if err != nil {
		return 0 // it is about to be created anew
	}
	return consumer.CachedInfo().NumWaiting
}

// otherHubServer returns a hub server on which the node's consumer does not live.
func otherHubServer(t *testing.T, js jetstream.JetStream) (url string) {
	t.Helper()
	consumer, err := js.Consumer(t.Context(), subject.DesiredStream, "edge_1")
	if err != nil {
		t.Fatal(err)
	}
	home := consumer.CachedInfo().Cluster.Leader
	servers := js.Conn().Servers() // in the order of hub-0, hub-1, hub-2
	return servers[(slices.Index([]string{"hub-0", "hub-1", "hub-2"}, home)+1)%len(servers)]
}
