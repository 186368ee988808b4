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
	"github.com/frond-edge/frond/streams/streamstest"
)

// large is an object of so many bytes which do not compress well.
func large(name, version string, bytes int) wire.Message {
	noise := make([]byte, bytes/4*3)
	source := rand.NewChaCha8([32]byte{})
	_, _ = source.Read(noise) // never fails
	m := apply(name, version)
	m.Object = fmt.Appendf(nil, `{"v":%q,"noise":%q}`, version, base64.StdEncoding.EncodeToString(noise))
	return m
}

// slowNode runs a node whose connection to the hub is a slow one.
func slowNode(t *testing.T, hub *server.Server, store streams.Store, link streams.Link, rate int) (*streamstest.Slow, *nats.Conn, *prometheus.Registry) {
	t.Helper()
	slow := streamstest.NewSlow(t, hub.Addr().String(), rate)
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
	run(t, delivery.Start)
	return slow, nc, reg
}

// within waits longer than Eventually.
func within(t *testing.T, limit time.Duration, what string, condition func() bool) {
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

func version(object string) string {
	v, _, _ := strings.Cut(strings.TrimPrefix(object, `{"v":"`), `"`)
	return v
}

// A large object on a slow link keeps no small one waiting, comes in spite of a cut with what came before it, and costs the
// link little more than its size. Until it is there the cursor does not claim it.
func TestALargeObjectComesInPieces(t *testing.T) {
	const size, rate = 700 << 10, 100 << 10
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store, link := newMemory(), newLink()
	cloud.publish(t, apply("small", "0"))
	slow, nc, _ := slowNode(t, hub, store, link, rate)
	within(t, time.Minute, "the snapshot", func() bool { return version(store.get("small")) == "0" })
	before, overtaken := slow.Down(), false
	store.mu.Lock()
	store.watch = func() {
		_, whole := store.objects[key("huge")]
		overtaken = overtaken || !whole && store.objects[key("small")].Version == "1"
	}
	store.mu.Unlock()

	began := time.Now()
	sequence := cloud.publish(t, large("huge", "1", size))
	cut := false
	for i := 1; store.get("huge") == ""; i++ {
		sent := time.Now()
		v := fmt.Sprint(i)
		cloud.publish(t, apply("small", v))
		stalled := time.Since(began) > size/rate*time.Second/2
		within(t, time.Minute, "a small object", func() bool { return version(store.get("small")) == v })
		t.Logf("small object %d after %s", i, time.Since(sent).Round(time.Millisecond))
		store.mu.Lock()
		_, whole := store.objects[key("huge")]
		if claimed := store.cursor.Sequence >= sequence; claimed != whole {
			t.Errorf("the large object is there: %t, the cursor claims it: %t", whole, claimed)
		}
		if i == 1 && !overtaken && !stalled {
			t.Error("the small object came behind the large one")
		}
		store.mu.Unlock()
		if !cut && slow.Down()-before > size/2 {
			cut = true
			link.set(false)
			lost := nc.StatusChanged(nats.RECONNECTING)
			again := nc.StatusChanged(nats.CONNECTED)
			slow.Cut()
			<-lost
			<-again
			link.set(true)
		}
	}
	took, came := time.Since(began), slow.Down()-before
	t.Logf("the large object after %s, with %.2f times its bytes, cut %t", took.Round(time.Millisecond), float64(came)/size, cut)
	if want := large("huge", "1", size); store.get("huge") != string(want.Object) {
		t.Error("the object is not what was published")
	}
	if !cut {
		t.Error("the link was never cut, so nothing of that is shown")
	}
	if came > size*11/10+2*rate { // what is on its way at a cut comes again: a piece of at most 2 s
		t.Errorf("%d bytes came for an object of %d", came, size)
	}
	within(t, time.Minute, "the cursor", func() bool { return store.Cursor().Sequence > sequence })
}

// awaiting tells how many objects a node knows of and lacks.
func awaiting(t *testing.T, reg *prometheus.Registry) float64 {
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

// What replaces a large object on its way takes its place at once, a tombstone as well.
func TestALargeObjectOnItsWayIsReplaced(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemory()
	_, _, reg := slowNode(t, hub, store, newLink(), 20<<10)
	cloud.publish(t, apply("a", "0"))
	within(t, time.Minute, "the first", func() bool { return store.get("a") != "" })
	var saved []string
	store.mu.Lock()
	store.watch = func() {
		for _, m := range store.objects {
			if len(m.Object) > 1000 {
				saved = append(saved, m.Key.Name+m.Version)
			}
		}
	}
	store.mu.Unlock()
	cloud.publish(t, large("a", "1", 400<<10)) // 20 s
	cloud.publish(t, large("b", "1", 400<<10))
	within(t, time.Minute, "marks", func() bool { return awaiting(t, reg) == 2 })
	if v := version(store.get("a")); v != "0" {
		t.Errorf("while the new one is on its way the store has version %q", v)
	}
	cloud.publish(t, apply("a", "2"))
	last := cloud.publish(t, tombstone("b"))
	within(t, time.Minute, "what replaced them", func() bool {
		return version(store.get("a")) == "2" && store.size() == 1 && store.Cursor().Sequence == last
	})
	if n := awaiting(t, reg); n != 0 {
		t.Errorf("%v objects are awaited", n)
	}
	store.mu.Lock()
	defer store.mu.Unlock()
	if len(saved) != 0 {
		t.Errorf("saved %v", saved)
	}
}

// A node that restarts knows nothing of what it was fetching, and gets it all the same; its pods it has before it believes a
// snapshot.
func TestARestartForgetsNoLargeObject(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, true)
	marker := apply("a", "1")
	marker.Key = wire.SnapshotMarker()
	cloud.publish(t, marker)
	pod := large("pod", "1", 60<<10)
	pod.Key.Resource = "pods"
	cloud.publish(t, pod)
	sequence := cloud.publish(t, large("huge", "1", 300<<10))
	cloud.publish(t, apply("small", "1"))
	store, link := newMemory(), newLink()
	store.watch = func() {
		if _, ok := store.objects[pod.Key]; !ok {
			t.Error("the snapshot was believed without a pod")
		}
	}
	slow := streamstest.NewSlow(t, hub.Addr().String(), 100<<10)
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
		return run(t, delivery.Start), reg
	}
	stop, reg := start()
	within(t, time.Minute, "the snapshot", func() bool { return version(store.get("small")) == "1" })
	if awaiting(t, reg) != 1 || store.Cursor().Sequence >= sequence {
		t.Errorf("%v objects are awaited, the cursor is %d", awaiting(t, reg), store.Cursor().Sequence)
	}
	stop()
	if store.get("huge") != "" {
		t.Skip("this machine stood still for as long as the object takes, so nothing is shown")
	}
	start()
	within(t, time.Minute, "the large object", func() bool { return version(store.get("huge")) == "1" && store.Cursor().Sequence > sequence })
	store.mu.Lock()
	defer store.mu.Unlock()
	if store.replaced != 1 {
		t.Errorf("%d full snapshots", store.replaced)
	}
}

// A large payload that is no object becomes a dead letter, and nothing waits for it.
func TestLargeGarbageIsDeadLettered(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	store := newMemory()
	reg := startNode(t, hub, store, newLink())
	cloud.publish(t, apply("a", "0"))
	streamstest.Eventually(t, "the first", func() bool { return store.get("a") != "" })
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	garbage := make([]byte, 600<<10)
	_, err = js.PublishMsg(t.Context(), &nats.Msg{
		Subject: streams.Subject(streams.Desired, "edge.1", key("g")), Data: garbage,
		Header: nats.Header{"Frond-Version": {"1"}, "Frond-Op": {"apply"}, "Frond-Time": {time.Now().Format(time.RFC3339Nano)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "desired.edge_1.core.configmaps.default.headless", garbage); err != nil {
		t.Fatal(err)
	}
	last := cloud.publish(t, apply("a", "1"))
	within(t, time.Minute, "what comes behind it", func() bool { return version(store.get("a")) == "1" && store.Cursor().Sequence == last })
	if n := deadCount(t, reg, "desired"); n != 2 {
		t.Errorf("%v dead letters, want 2", n)
	}
}

// message returns what the stream holds at a sequence, and the stream's epoch.
func message(t *testing.T, hub *server.Server, sequence uint64) (stored *jetstream.RawStreamMsg, epoch string) {
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

// A node gets pieces of what is its own, and an answer to garbage that says so.
func TestANodeGetsPiecesOfItsOwnOnly(t *testing.T) {
	hub := streamstest.Hub(t)
	cloud := startCloud(t, hub, false)
	sequence := cloud.publish(t, large("huge", "1", 100<<10))
	stored, epoch := message(t, hub, sequence)
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
