package streams_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// largeMessage returns an object with the given number of poorly compressible bytes.
func largeMessage(name, version string, bytes int) wire.Message {
	noise := make([]byte, bytes/4*3)
	source := rand.NewChaCha8([32]byte{})
	_, _ = source.Read(noise) // never fails
	m := desiredMessage(name, version)
	m.Object = fmt.Appendf(nil, `{"v":%q,"noise":%q}`, version, base64.StdEncoding.EncodeToString(noise))
	return m
}

// startSlowNode runs a node with a slow connection to the hub.
func startSlowNode(t *testing.T, hub *server.Server, store streams.Store, link streams.Link, rate int) (*streamstest.SlowLink, *nats.Conn, *prometheus.Registry) {
	t.Helper()
	slow := streamstest.NewSlowLink(t, hub.Addr().String(), rate)
	nc, err := nats.Connect("nats://"+slow.Addr(), nats.UserInfo("edge.1", ""), nats.CustomInboxPrefix(streams.InboxPrefix("edge.1")), nats.MaxReconnects(-1),
		nats.ReconnectWait(50*time.Millisecond), nats.ReconnectJitter(0, 0), nats.Timeout(10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	reg := prometheus.NewRegistry()
	delivery, err := streams.NewDelivery("edge.1", nc, store, link, streams.NewMetrics(reg), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, delivery.Start)
	return slow, nc, reg
}

// waitWithin waits longer than Eventually.
func waitWithin(t *testing.T, limit time.Duration, what string, condition func() bool) {
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

func objectVersion(object string) string {
	v, _, _ := strings.Cut(strings.TrimPrefix(object, `{"v":"`), `"`)
	return v
}

// A large object on a slow link delays no small one, keeps its received pieces over a cut, and costs the link little more than its size.
// The cursor does not cover it until it is complete.
func TestDelivery_LargeObjectComesInPieces(t *testing.T) {
	const size, rate = 700 << 10, 100 << 10
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store, link := newMemoryStore(), newSwitchableLink()
	cloud.publishNext(t, desiredMessage("small", "0"))
	slow, nc, _ := startSlowNode(t, hub, store, link, rate)
	waitWithin(t, time.Minute, "the snapshot", func() bool { return objectVersion(store.objectOf("small")) == "0" })
	before, overtaken := slow.BytesDown(), false
	store.mu.Lock()
	store.onChange = func() {
		_, whole := store.objects[configMapKey("huge")]
		overtaken = overtaken || !whole && store.objects[configMapKey("small")].Version == "1"
	}
	store.mu.Unlock()

	began := time.Now()
	sequence := cloud.publishNext(t, largeMessage("huge", "1", size))
	cut := false
	for i := 1; store.objectOf("huge") == ""; i++ {
		sent := time.Now()
		v := fmt.Sprint(i)
		cloud.publishNext(t, desiredMessage("small", v))
		stalled := time.Since(began) > size/rate*time.Second/2
		waitWithin(t, time.Minute, "a small object", func() bool { return objectVersion(store.objectOf("small")) == v })
		t.Logf("small object %d after %s", i, time.Since(sent).Round(time.Millisecond))
		store.mu.Lock()
		_, whole := store.objects[configMapKey("huge")]
		if claimed := store.cursor.Sequence >= sequence; claimed != whole {
			t.Errorf("the large object is there: %t, the cursor claims it: %t", whole, claimed)
		}
		if i == 1 && !overtaken && !stalled {
			t.Error("the small object came behind the large one")
		}
		store.mu.Unlock()
		if !cut && slow.BytesDown()-before > size/2 {
			cut = true
			link.setUp(false)
			lost := nc.StatusChanged(nats.RECONNECTING)
			again := nc.StatusChanged(nats.CONNECTED)
			slow.Cut()
			<-lost
			<-again
			link.setUp(true)
		}
	}
	took, came := time.Since(began), slow.BytesDown()-before
	t.Logf("the large object after %s, with %.2f times its bytes, cut %t", took.Round(time.Millisecond), float64(came)/size, cut)
	if want := largeMessage("huge", "1", size); store.objectOf("huge") != string(want.Object) {
		t.Error("the object is not what was published")
	}
	if !cut {
		t.Error("the link was never cut, so nothing of that is shown")
	}
	if came > size*11/10+2*rate { // a cut repeats the piece in flight: at most 2 s
		t.Errorf("%d bytes came for an object of %d", came, size)
	}
	waitWithin(t, time.Minute, "the cursor", func() bool { return store.Cursor().Sequence > sequence })
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
	cloud := startCloud(t, hub, false)
	store := newMemoryStore()
	_, _, reg := startSlowNode(t, hub, store, newSwitchableLink(), 20<<10)
	cloud.publishNext(t, desiredMessage("a", "0"))
	waitWithin(t, time.Minute, "the first", func() bool { return store.objectOf("a") != "" })
	var saved []string
	store.mu.Lock()
	store.onChange = func() {
		for _, m := range store.objects {
			if len(m.Object) > 1000 {
				saved = append(saved, m.Key.Name+m.Version)
			}
		}
	}
	store.mu.Unlock()
	cloud.publishNext(t, largeMessage("a", "1", 400<<10)) // 20 s
	cloud.publishNext(t, largeMessage("b", "1", 400<<10))
	waitWithin(t, time.Minute, "marks", func() bool { return countPending(t, reg) == 2 })
	if v := objectVersion(store.objectOf("a")); v != "0" {
		t.Errorf("while the new one is on its way the store has version %q", v)
	}
	cloud.publishNext(t, desiredMessage("a", "2"))
	last := cloud.publishNext(t, tombstoneMessage("b"))
	waitWithin(t, time.Minute, "what replaced them", func() bool {
		return objectVersion(store.objectOf("a")) == "2" && store.objectCount() == 1 && store.Cursor().Sequence == last
	})
	if n := countPending(t, reg); n != 0 {
		t.Errorf("%v objects are awaited", n)
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	if len(saved) != 0 {
		t.Errorf("saved %v", saved)
	}
}

// A restarted node has forgotten its pending objects and still gets them; it has its pods before it accepts a snapshot as complete.
func TestDelivery_RestartFetchesPendingObjectAgain(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, true)
	marker := desiredMessage("a", "1")
	marker.Key = wire.SnapshotMarker()
	cloud.publishNext(t, marker)
	pod := largeMessage("pod", "1", 60<<10)
	pod.Key.Resource = "pods"
	cloud.publishNext(t, pod)
	sequence := cloud.publishNext(t, largeMessage("huge", "1", 300<<10))
	cloud.publishNext(t, desiredMessage("small", "1"))
	store, link := newMemoryStore(), newSwitchableLink()
	store.onChange = func() {
		if _, ok := store.objects[pod.Key]; !ok {
			t.Error("the snapshot was believed without a pod")
		}
	}
	slow := streamstest.NewSlowLink(t, hub.Addr().String(), 100<<10)
	start := func() (stop func(), reg *prometheus.Registry) {
		nc, err := nats.Connect("nats://"+slow.Addr(), nats.UserInfo("edge.1", ""), nats.CustomInboxPrefix(streams.InboxPrefix("edge.1")))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		reg = prometheus.NewRegistry()
		delivery, err := streams.NewDelivery("edge.1", nc, store, link, streams.NewMetrics(reg), zaptest.NewLogger(t))
		if err != nil {
			t.Fatal(err)
		}
		return startPart(t, delivery.Start), reg
	}
	stop, reg := start()
	waitWithin(t, time.Minute, "the snapshot", func() bool { return objectVersion(store.objectOf("small")) == "1" })
	if countPending(t, reg) != 1 || store.Cursor().Sequence >= sequence {
		t.Errorf("%v objects are awaited, the cursor is %d", countPending(t, reg), store.Cursor().Sequence)
	}
	stop()
	if store.objectOf("huge") != "" {
		t.Skip("this machine stood still for as long as the object takes, so nothing is shown")
	}
	start()
	waitWithin(t, time.Minute, "the large object", func() bool { return objectVersion(store.objectOf("huge")) == "1" && store.Cursor().Sequence > sequence })
	store.mu.Lock()
	defer store.mu.Unlock()
	if store.replaced != 1 {
		t.Errorf("%d full snapshots", store.replaced)
	}
}

// A large payload that is not an object becomes a dead letter and delays nothing.
func TestDelivery_LargeMalformedIsDeadLettered(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemoryStore()
	reg := startNode(t, hub, store, newSwitchableLink())
	cloud.publishNext(t, desiredMessage("a", "0"))
	streamstest.Eventually(t, "the first", func() bool { return store.objectOf("a") != "" })
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	garbage := make([]byte, 600<<10)
	_, err = js.PublishMsg(t.Context(), &nats.Msg{
		Subject: streams.Subject(streams.Desired, "edge.1", configMapKey("g")), Data: garbage,
		Header: nats.Header{"Frond-Version": {"1"}, "Frond-Op": {"apply"}, "Frond-Time": {time.Now().Format(time.RFC3339Nano)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "desired.edge_1.core.configmaps.default.headless", garbage); err != nil {
		t.Fatal(err)
	}
	last := cloud.publishNext(t, desiredMessage("a", "1"))
	waitWithin(t, time.Minute, "what comes behind it", func() bool { return objectVersion(store.objectOf("a")) == "1" && store.Cursor().Sequence == last })
	if n := countDeadLetters(t, reg, "desired"); n != 2 {
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
	stream, err := js.Stream(t.Context(), streams.DesiredStream)
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
	cloud := startCloud(t, hub, false)
	sequence := cloud.publishNext(t, largeMessage("huge", "1", 100<<10))
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
			msg, err := asker.Request(streams.CallSubject(tt.node, streams.VerbPiece), body, 10*time.Second)
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
