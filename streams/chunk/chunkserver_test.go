package chunk_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/chunk"
	"github.com/frond-edge/frond/streams/deliver"
	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/relaytest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// startSlowNode runs a node with a slow connection to the hub.
func startSlowNode(t *testing.T, hub *server.Server, store deliver.Store, link link.Link, rate int) (*relaytest.Relay, *nats.Conn, *prometheus.Registry) {
	t.Helper()
	slow := relaytest.Start(t, hub.Addr().String(), relaytest.Config{Rate: rate})
	nc, err := nats.Connect("nats://"+slow.Addr(), nats.UserInfo("edge.1", ""), nats.CustomInboxPrefix(subject.InboxPrefix("edge.1")), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	reg := prometheus.NewRegistry()
	delivery, err := deliver.NewDelivery(deliver.Config{Node: "edge.1"}, nc, store, link, metrics.New(reg), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, delivery.Start)
	return slow, nc, reg
}

// A large object on a slow link delays no small one, keeps its received pieces over a cut, and costs the link little more than its size.
// The cursor does not cover it until it is complete.
func TestDelivery_LargeObjectComesInPieces(t *testing.T) {
	const size, rate = 700 << 10, 100 << 10
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	store, link := streamstest.NewMemoryStore(), streamstest.NewSwitchableLink()
	cloud.PublishNext(t, streamstest.DesiredMessage("small", "0"))
	slow, nc, _ := startSlowNode(t, hub, store, link, rate)
	streamstest.WaitWithin(t, time.Minute, "the snapshot", func() bool { return streamstest.ObjectVersion(store.ObjectOf("small")) == "0" })
	before, overtaken := slow.Bytes(relaytest.FromTarget), false
	store.Mu.Lock()
	store.OnChange = func() {
		_, whole := store.Objects[streamstest.ConfigMapKey("huge")]
		overtaken = overtaken || !whole && store.Objects[streamstest.ConfigMapKey("small")].Version == "1"
	}
	store.Mu.Unlock()

	began := time.Now()
	sequence := cloud.PublishNext(t, streamstest.LargeMessage("huge", "1", size))
	cut := false
	for i := 1; store.ObjectOf("huge") == ""; i++ {
		sent := time.Now()
		v := fmt.Sprint(i)
		cloud.PublishNext(t, streamstest.DesiredMessage("small", v))
		stalled := time.Since(began) > size/rate*time.Second/2
		streamstest.WaitWithin(t, time.Minute, "a small object", func() bool { return streamstest.ObjectVersion(store.ObjectOf("small")) == v })
		t.Logf("small object %d after %s", i, time.Since(sent).Round(time.Millisecond))
		store.Mu.Lock()
		_, whole := store.Objects[streamstest.ConfigMapKey("huge")]
		if claimed := store.At.Sequence >= sequence; claimed != whole {
			t.Errorf("the large object is there: %t, the cursor claims it: %t", whole, claimed)
		}
		if i == 1 && !overtaken && !stalled {
			t.Error("the small object came behind the large one")
		}
		store.Mu.Unlock()
		if !cut && slow.Bytes(relaytest.FromTarget)-before > size/2 {
			cut = true
			link.SetUp(false)
			lost := nc.StatusChanged(nats.RECONNECTING)
			again := nc.StatusChanged(nats.CONNECTED)
			slow.Reset()
			<-lost
			<-again
			link.SetUp(true)
		}
	}
	took, came := time.Since(began), slow.Bytes(relaytest.FromTarget)-before
	t.Logf("the large object after %s, with %.2f times its bytes, cut %t", took.Round(time.Millisecond), float64(came)/size, cut)
	if want := streamstest.LargeMessage("huge", "1", size); store.ObjectOf("huge") != string(want.Object) {
		t.Error("the object is not what was published")
	}
	if !cut {
		t.Error("the link was never cut, so nothing of that is shown")
	}
	if came > size*11/10+2*rate { // a cut repeats the piece in flight: at most 2 s
		t.Errorf("%d bytes came for an object of %d", came, size)
	}
	streamstest.WaitWithin(t, time.Minute, "the cursor", func() bool { return store.Cursor().Sequence > sequence })
}

// countPending returns how many objects are pending at a node.
func countPending(t *testing.T, reg *prometheus.Registry) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "frond_delivery_awaited_objects" {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatal("no such metric")
	return 0
}

// A newer state replaces a pending large object at once; so does a tombstone.
func TestDelivery_NewerStateReplacesPendingObject(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	store := streamstest.NewMemoryStore()
	_, _, reg := startSlowNode(t, hub, store, streamstest.NewSwitchableLink(), 20<<10)
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "0"))
	streamstest.WaitWithin(t, time.Minute, "the first", func() bool { return store.ObjectOf("a") != "" })
	var saved []string
	store.Mu.Lock()
	store.OnChange = func() {
		for _, m := range store.Objects {
			if len(m.Object) > 1000 {
				saved = append(saved, m.Key.Name+m.Version)
			}
		}
	}
	store.Mu.Unlock()
	cloud.PublishNext(t, streamstest.LargeMessage("a", "1", 400<<10)) // 20 s
	cloud.PublishNext(t, streamstest.LargeMessage("b", "1", 400<<10))
	streamstest.WaitWithin(t, time.Minute, "marks", func() bool { return countPending(t, reg) == 2 })
	if v := streamstest.ObjectVersion(store.ObjectOf("a")); v != "0" {
		t.Errorf("while the new one is on its way the store has version %q", v)
	}
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "2"))
	last := cloud.PublishNext(t, streamstest.TombstoneMessage("b"))
	streamstest.WaitWithin(t, time.Minute, "what replaced them", func() bool {
		return streamstest.ObjectVersion(store.ObjectOf("a")) == "2" && store.ObjectCount() == 1 && store.Cursor().Sequence == last
	})
	if n := countPending(t, reg); n != 0 {
		t.Errorf("%v objects are awaited", n)
	}
	store.Mu.Lock()
	defer store.Mu.Unlock()
	if len(saved) != 0 {
		t.Errorf("saved %v", saved)
	}
}

// A restarted node has forgotten its pending objects and still gets them; it has its pods before it accepts a snapshot as complete.
func TestDelivery_RestartFetchesPendingObjectAgain(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, true)
	marker := streamstest.DesiredMessage("a", "1")
	marker.Key = wire.SnapshotMarker()
	cloud.PublishNext(t, marker)
	pod := streamstest.LargeMessage("pod", "1", 60<<10)
	pod.Key.Resource = "pods"
	cloud.PublishNext(t, pod)
	sequence := cloud.PublishNext(t, streamstest.LargeMessage("huge", "1", 300<<10))
	cloud.PublishNext(t, streamstest.DesiredMessage("small", "1"))
	store, link := streamstest.NewMemoryStore(), streamstest.NewSwitchableLink()
	store.OnChange = func() {
		if _, ok := store.Objects[pod.Key]; !ok {
			t.Error("the snapshot was believed without a pod")
		}
	}
	slow := relaytest.Start(t, hub.Addr().String(), relaytest.Config{Rate: 100 << 10})
	start := func() (stop func(), reg *prometheus.Registry) {
		nc, err := nats.Connect("nats://"+slow.Addr(), nats.UserInfo("edge.1", ""), nats.CustomInboxPrefix(subject.InboxPrefix("edge.1")))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		reg = prometheus.NewRegistry()
		delivery, err := deliver.NewDelivery(deliver.Config{Node: "edge.1"}, nc, store, link, metrics.New(reg), zaptest.NewLogger(t))
		if err != nil {
			t.Fatal(err)
		}
		return streamstest.StartPart(t, delivery.Start), reg
	}
	stop, reg := start()
	streamstest.WaitWithin(t, time.Minute, "the snapshot", func() bool { return streamstest.ObjectVersion(store.ObjectOf("small")) == "1" })
	if countPending(t, reg) != 1 || store.Cursor().Sequence >= sequence {
		t.Errorf("%v objects are awaited, the cursor is %d", countPending(t, reg), store.Cursor().Sequence)
	}
	stop()
	if store.ObjectOf("huge") != "" {
		t.Skip("this machine stood still for as long as the object takes, so nothing is shown")
	}
	start()
	streamstest.WaitWithin(t, time.Minute, "the large object", func() bool {
		return streamstest.ObjectVersion(store.ObjectOf("huge")) == "1" && store.Cursor().Sequence > sequence
	})
	store.Mu.Lock()
	defer store.Mu.Unlock()
	if store.Replaced != 1 {
		t.Errorf("%d full snapshots", store.Replaced)
	}
}

// A large payload that is not an object becomes a dead letter and delays nothing.
func TestDelivery_LargeMalformedIsDeadLettered(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	store := streamstest.NewMemoryStore()
	reg := streamstest.StartNode(t, hub, store, streamstest.NewSwitchableLink())
	cloud.PublishNext(t, streamstest.DesiredMessage("a", "0"))
	kit.Eventually(t, "the first", func() bool { return store.ObjectOf("a") != "" })
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	garbage := make([]byte, 600<<10)
	_, err = js.PublishMsg(t.Context(), &nats.Msg{
		Subject: subject.Of(subject.Desired, "edge.1", streamstest.ConfigMapKey("g")), Data: garbage,
		Header: nats.Header{"Frond-Version": {"1"}, "Frond-Op": {"apply"}, "Frond-Time": {time.Now().Format(time.RFC3339Nano)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "desired.edge_1.core.configmaps.default.headless", garbage); err != nil {
		t.Fatal(err)
	}
	last := cloud.PublishNext(t, streamstest.DesiredMessage("a", "1"))
	streamstest.WaitWithin(t, time.Minute, "what comes behind it", func() bool {
		return streamstest.ObjectVersion(store.ObjectOf("a")) == "1" && store.Cursor().Sequence == last
	})
	if n := streamstest.CountDeadLetters(t, reg, "desired"); n != 2 {
		t.Errorf("%v dead letters, want 2", n)
	}
}

// readStoredMessage returns the message that the stream holds at a sequence, and the stream's epoch.
func readStoredMessage(t *testing.T, hub *server.Server, sequence uint64) (stored *jetstream.RawStreamMsg, epoch string) {
	t.Helper()
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subject.DesiredStream)
	if err != nil {
		t.Fatal(err)
	}
	if stored, err = stream.GetMsg(t.Context(), sequence); err != nil {
		t.Fatal(err)
	}
	return stored, stream.CachedInfo().Created.UTC().Format("20060102T150405.000000000Z")
}

// A node gets pieces of its own messages only, and a malformed request is refused with a reason.
func TestChunkServer_ServesOwnMessagesOnly(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := streamstest.StartCloud(t, hub, false)
	sequence := cloud.PublishNext(t, streamstest.LargeMessage("huge", "1", 100<<10))
	stored, epoch := readStoredMessage(t, hub, sequence)
	good := wire.PieceRequest{StreamEpoch: epoch, Subject: stored.Subject, Sequence: sequence, Offset: 1000, Length: 2000}
	with := func(change func(*wire.PieceRequest)) wire.PieceRequest {
		req := good
		change(&req)
		return req
	}
	for name, tt := range map[string]struct {
		node string
		req  wire.PieceRequest
		want string // the payload, "gone" or "refused"
	}{
		"a piece":         {"edge.1", good, string(stored.Data[1000:3000])},
		"the end":         {"edge.1", with(func(r *wire.PieceRequest) { r.Offset, r.Length = 100<<10, 1<<30 }), string(stored.Data[100<<10:])},
		"beyond the end":  {"edge.1", with(func(r *wire.PieceRequest) { r.Offset = 1 << 30 }), "refused"},
		"another node's":  {"edge.2", good, "refused"},
		"another plane":   {"edge.1", with(func(r *wire.PieceRequest) { r.Subject = "report.edge_1.core.configmaps.default.huge" }), "refused"},
		"another life":    {"edge.1", with(func(r *wire.PieceRequest) { r.StreamEpoch = "x" }), "gone"},
		"an older one":    {"edge.1", with(func(r *wire.PieceRequest) { r.Subject = strings.Replace(r.Subject, "huge", "none", 1) }), "gone"},
		"not yet seen":    {"edge.1", with(func(r *wire.PieceRequest) { r.Sequence += 5 }), "refused"},
		"nothing":         {"edge.1", with(func(r *wire.PieceRequest) { r.Length = 0 }), "refused"},
		"before it":       {"edge.1", with(func(r *wire.PieceRequest) { r.Offset = -1 }), "refused"},
		"all that are it": {"edge.1", with(func(r *wire.PieceRequest) { r.Subject = "desired.edge_1.>" }), "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			asker := streamstest.Node(t, hub, tt.node)
			body, err := json.Marshal(tt.req)
			if err != nil {
				t.Fatal(err)
			}
			msg, err := asker.Request(subject.CallSubject(tt.node, subject.VerbPiece), body, 10*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			got := string(msg.Data)
			switch {
			case msg.Header.Get("Frond-Gone") != "":
				got = "gone"
			case msg.Header.Get("Frond-Size") == "":
				got = "refused"
			}
			if got != tt.want {
				t.Errorf("%.200q, want %.200q", got, tt.want)
			}
		})
	}
}

func FuzzParsePieceRequest(f *testing.F) {
	f.Add([]byte(`{"streamEpoch":"e","subject":"desired.edge_1.core.configmaps.a.b","seq":7,"offset":0,"length":100}`))
	f.Add([]byte(`{"subject":"desired.edge_2.core.configmaps.a.b","seq":7,"offset":0,"length":100}`))
	f.Add([]byte(`{"subject":"report.edge_1.core.configmaps.a.b","seq":7,"offset":-1,"length":100}`))
	f.Add([]byte(`{"subject":"desired.edge_1.>","seq":7,"length":9223372036854775807}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		req, err := chunk.PieceRequest("edge.1", data)
		if err != nil {
			if !errors.Is(err, wire.ErrPermanent) {
				t.Errorf("%v does not say that it is garbage", err)
			}
			return
		}
		plane, node, _, err := subject.Parse(req.Subject)
		if err != nil || plane != subject.Desired || node != "edge.1" || req.Offset < 0 || req.Length <= 0 {
			t.Errorf("taken: %+v, %v", req, err)
		}
	})
}
