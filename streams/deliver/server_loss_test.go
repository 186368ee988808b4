package deliver_test

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// A node attaches again each time it is told that the server with its consumer is gone; the death of any other server has no effect. Here
// all servers are alive, so only the command makes the node attach.
func TestDelivery_ReattachesWhenConsumerServerDied(t *testing.T) {
	js, _ := startHubCluster(t, t.TempDir(), false)
	awaitTopology(t, js)
	url := js.Conn().ConnectedUrl()
	connect := func(opts ...nats.Option) *nats.Conn {
		t.Helper()
		nc, err := nats.Connect(url, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		return nc
	}
	nc := connect()
	cloud := streamstest.StartCloudOver(t, nc, false)
	var attaches, heard atomic.Int64
	if _, err := nc.Subscribe(subject.CallSubject("edge.1", subject.VerbAttach), func(*nats.Msg) { attaches.Add(1) }); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	store, node := streamstest.NewMemoryStore(), connect(nats.UserInfo("edge.1", ""), nats.CustomInboxPrefix(subject.InboxPrefix("edge.1")))
	delivery, err := deliver.NewDelivery(deliver.Config{Node: "edge.1"}, node, store, streamstest.NewSwitchableLink(), metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	orders := call.NewCommandListener("edge.1", node, map[string]func([]byte){call.VerbDied: func(server []byte) {
		delivery.ServerDied(string(server))
		heard.Add(1)
	}}, metrics.New(nil), zaptest.NewLogger(t))
	streamstest.StartPart(t, orders.Start)
	streamstest.StartPart(t, delivery.Start)
	version := 0
	// pulled delivers two states; the second arrives by a pull that was opened after earlier commands were handled.
	pulled := func() {
		t.Helper()
		for range 2 {
			version++
			want := streamstest.DesiredMessage("a", fmt.Sprint(version))
			cloud.PublishNext(t, want)
			kit.Eventually(t, "version "+want.Version, func() bool { return store.ObjectOf("a") == string(want.Object) })
		}
	}
	home := func() string {
		t.Helper()
		consumer, err := js.Consumer(t.Context(), subject.DesiredStream, "edge_1")
		if err != nil {
			t.Fatal(err)
		}
		return consumer.CachedInfo().Cluster.Leader
	}
	order := func(server string) {
		t.Helper()
		before := heard.Load()
		kit.Eventually(t, "the order is heard", func() bool {
			if err := call.SendCommand(nc, "edge.1", call.VerbDied, []byte(server)); err != nil {
				t.Fatal(err)
			}
			return heard.Load() > before
		})
		kit.Eventually(t, "the order is obeyed", delivery.NoDeadServersQueued)
	}
	pulled()
	undisturbed := false
	for range 5 { // a machine that stood still makes nodes attach, too
		before, other := attaches.Load(), "hub-0"
		if other == home() {
			other = "hub-1"
		}
		order(other)
		pulled()
		if undisturbed = attaches.Load() == before; undisturbed {
			break
		}
	}
	if !undisturbed {
		t.Error("the death of a server without the consumer makes the node attach again")
	}
	for range 2 {
		before := attaches.Load()
		order(home())
		kit.Eventually(t, "another attach", func() bool { return attaches.Load() > before })
		pulled()
	}
}

// A stopped cloudcore takes a node's attach request with it. When the node is told, it sends the request again instead of waiting for the
// answer.
func TestDelivery_RepeatsAttachWhenCloudcoreDied(t *testing.T) {
	t.Parallel()
	hub := streamstest.Hub(t)
	stopped := streamstest.Connect(t, hub)
	asked := make(chan struct{}, 100)
	sub, err := stopped.QueueSubscribe(subject.CallSubject("edge.1", subject.VerbAttach), "cloudcore", func(*nats.Msg) { asked <- struct{}{} })
	if err != nil {
		t.Fatal(err)
	}
	if err := stopped.Flush(); err != nil {
		t.Fatal(err)
	}
	store, node := streamstest.NewMemoryStore(), streamstest.Node(t, hub, "edge.1")
	delivery, err := deliver.NewDelivery(deliver.Config{Node: "edge.1"}, node, store, streamstest.NewSwitchableLink(), metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, delivery.Start)
	<-asked
	if err := sub.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if err := stopped.Flush(); err != nil {
		t.Fatal(err)
	}
	cloud := streamstest.StartCloud(t, hub, false)
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "1"))
	began := time.Now()
	delivery.ServerDied("cloudcore-2")
	kit.Eventually(t, "the node is served", func() bool { return store.ObjectOf("a") != "" })
	if took := time.Since(began); took > 7*time.Second { // the request itself waits for 15 s
		t.Errorf("served after %s", took)
	}
}
