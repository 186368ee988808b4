package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/chunk"
	"github.com/frond-edge/frond/streams/consume"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/relaytest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// gatewayUplink is a gateway's outbox with its pumps, behind a slow link, and the messages that the cloud received.
type gatewayUplink struct {
	*testing.T
	slow   *relaytest.Relay
	leaf   *leaftest.Leaf
	outbox *outbox.Outbox
	hub    jetstream.JetStream

	mu       sync.Mutex
	received []wire.Message // guarded by mu
}

func (u *gatewayUplink) recordReport(_ context.Context, m wire.Message) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.received = append(u.received, m)
	return nil
}

// lastReceived returns the last state of an object that the cloud received.
func (u *gatewayUplink) lastReceived(name string) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, m := range slices.Backward(u.received) {
		if m.Key.Name == name {
			return string(m.Object)
		}
	}
	return ""
}

// newGatewayUplink links a gateway at rate bytes a second. Both ends drop a link that is silent for some 2 s.
func newGatewayUplink(t *testing.T, rate int) *gatewayUplink {
	t.Helper()
	return newGatewayUplinkTo(t, rate, subject.VerbPart)
}

// newGatewayUplinkTo links a gateway to a cloudcore that accepts parts on a verb.
func newGatewayUplinkTo(t *testing.T, rate int, verb string) *gatewayUplink {
	t.Helper()
	hub := leaftest.NewHub(t)
	u := &gatewayUplink{T: t}
	nc := hub.Conn()
	var err error
	if u.hub, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), u.hub, topology.HubTopology(1, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	log, metrics := zaptest.NewLogger(t), metrics.New(nil)
	parts, err := chunk.NewStore(nc, log)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := call.NewServer(nc, map[string]call.Handler{verb: parts.Handle}, metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, calls.Start)
	u.slow = relaytest.Start(t, hub.Addr(), relaytest.Config{Rate: rate})
	u.leaf = leaftest.StartLeaf(t, leaf.Config{Hub: []string{leaftest.URL(u.slow.Addr())}})
	own := u.leaf.Client()
	js, err := jetstream.New(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.LeafTopology()); err != nil {
		t.Fatal(err)
	}
	if u.outbox, err = outbox.New("edge-1", "s1", own); err != nil {
		t.Fatal(err)
	}
	for _, plane := range []subject.Plane{subject.Report, subject.Event} {
		pump, err := outbox.NewPump(plane, own, own, leafLink{u.leaf}, metrics, log)
		if err != nil {
			t.Fatal(err)
		}
		reports, err := consume.NewReportConsumer(plane, nc, u.recordReport, nil, metrics, log)
		if err != nil {
			t.Fatal(err)
		}
		streamstest.StartPart(t, reports.Start)
		streamstest.StartPart(t, pump.Start)
	}
	return u
}

// storeReport puts an object with the given number of poorly compressible bytes into the outbox, and returns it.
func (u *gatewayUplink) storeReport(put func(context.Context, wire.Message) error, name, version string, bytes int) string {
	u.Helper()
	m := streamstest.LargeMessage(name, version, bytes)
	if err := put(u.Context(), wire.Message{Key: m.Key, Op: wire.Apply, UID: m.UID, Object: m.Object}); err != nil {
		u.Fatal(err)
	}
	return string(m.Object)
}

// countParts returns the number of parts that the hub holds.
func (u *gatewayUplink) countParts() uint64 {
	u.Helper()
	stream, err := u.hub.Stream(u.Context(), subject.PartStream)
	if err != nil {
		u.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

// A report and an event that occupy the link for longer than it may be silent arrive, and a cut does not make the earlier parts be sent
// again. Otherwise the link stays up, and small reports do not wait behind the large ones.
func TestPump_SendsLargeReportsInParts(t *testing.T) {
	const size, rate = 250 << 10, 50 << 10
	u := newGatewayUplink(t, rate)
	small := u.storeReport(u.outbox.Report, "small", "0", 10)
	streamstest.WaitWithin(t, time.Minute, "the first report", func() bool { return u.lastReceived("small") == small })
	before := u.slow.Bytes(relaytest.ToTarget)
	event, report := u.storeReport(u.outbox.ReportEvent, "event", "1", size), u.storeReport(u.outbox.Report, "huge", "1", size)
	overtaken, cut := false, false
	for i := 1; u.lastReceived("huge") != report || u.lastReceived("event") != event; i++ {
		began := time.Now()
		small := u.storeReport(u.outbox.Report, "small", fmt.Sprint(i), 10)
		streamstest.WaitWithin(t, time.Minute, "a small report", func() bool { return u.lastReceived("small") == small })
		t.Logf("small report %d after %s", i, time.Since(began).Round(time.Millisecond))
		overtaken = overtaken || u.lastReceived("huge") == "" && u.lastReceived("event") == ""
		if !cut && u.slow.Bytes(relaytest.ToTarget)-before > size {
			cut = true
			state, changed := u.leaf.WatchLink()
			u.slow.Reset()
			for state.Up {
				<-changed
				state, changed = u.leaf.WatchLink()
			}
			streamstest.WaitWithin(t, time.Minute, "another link", func() bool { state, _ := u.leaf.WatchLink(); return state.Up })
		}
		if time.Since(began) > time.Minute {
			t.Fatal("never")
		}
	}
	sent := u.slow.Bytes(relaytest.ToTarget) - before
	t.Logf("%.2f times the bytes of both went over the link", float64(sent)/(2*size))
	if !overtaken || !cut {
		t.Errorf("a small report came first: %t; the link was cut: %t", overtaken, cut)
	}
	if sent > 2*size*12/10+3*rate { // two parts in flight at the cut, and small reports
		t.Errorf("%d bytes for two reports of %d", sent, size)
	}
	streamstest.WaitWithin(t, time.Minute, "no part is left", func() bool { return u.countParts() == 0 })
}

// A newer state goes at once, even while a large older one is being uploaded, and the older state never arrives after it.
func TestPump_NewerStateReplacesUpload(t *testing.T) {
	u := newGatewayUplink(t, 20<<10)
	u.storeReport(u.outbox.Report, "a", "1", 400<<10) // 20 s
	streamstest.WaitWithin(t, time.Minute, "parts on their way", func() bool { return u.countParts() > 1 })
	small := u.storeReport(u.outbox.Report, "a", "2", 10)
	streamstest.WaitWithin(t, time.Minute, "what replaced it", func() bool { return u.lastReceived("a") == small })
	again := u.storeReport(u.outbox.Report, "a", "3", 60<<10)
	streamstest.WaitWithin(t, time.Minute, "and what replaced that", func() bool { return u.lastReceived("a") == again })
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, m := range u.received {
		if v := streamstest.ObjectVersion(string(m.Object)); v == "1" {
			t.Error("the first state came")
		}
	}
}

// Replaced states do not pile up in the queue while another large report is uploaded.
func TestPump_ReplacedUploadsLeaveTheQueue(t *testing.T) {
	if n := outbox.QueuedUploads(100); n != 1 {
		t.Errorf("%d of 100 states of one object wait", n)
	}
}

// A large report goes whole to a cloudcore that does not support parts.
func TestPump_SendsWholeToOlderCloudcore(t *testing.T) {
	u := newGatewayUplinkTo(t, 1<<20, "another")
	whole := u.storeReport(u.outbox.Report, "huge", "1", 100<<10)
	streamstest.WaitWithin(t, time.Minute, "the report", func() bool { return u.lastReceived("huge") == whole })
	if n := u.countParts(); n != 0 {
		t.Errorf("%d parts", n)
	}
}

// Over a new link the last part of a payload is sent again, because its report may have been handled and the parts deleted.
func TestPump_ResendsLastPartOverNewLink(t *testing.T) {
	if at := outbox.ResendLastPart(100, 70, 100); at != 70 {
		t.Errorf("a whole payload goes on at %d", at)
	}
	if at := outbox.ResendLastPart(70, 40, 100); at != 70 {
		t.Errorf("half a payload goes on at %d", at)
	}
}

// sendPart sends a part and returns a cloudcore's reply.
func sendPart(t *testing.T, nc *nats.Conn, req wire.PartRequest, data string) (reply wire.PartReply) {
	t.Helper()
	body, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := nc.Request(subject.CallSubject("edge.1", subject.VerbPart), append(append(body, '\n'), data...), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(msg.Data, &reply); err != nil {
		t.Fatal(err)
	}
	return reply
}

// Parts are accepted in any size, repeated, and from the beginning. A malformed part, or one of another payload, is refused with a reason.
func TestChunkStore_ValidatesParts(t *testing.T) {
	hub := streamstest.Hub(t)
	nc := streamstest.Connect(t, hub)
	parts, err := chunk.NewStore(nc, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	calls, err := call.NewServer(nc, map[string]call.Handler{subject.VerbPart: parts.Handle}, metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, calls.Start)
	node := streamstest.Node(t, hub, "edge.1")
	const k = 1 << 10
	payload := strings.Repeat("0123456789abcdef", 2*k) // 32 KiB
	id := chunk.PayloadID("7", []byte(payload))
	at := func(offset int) wire.PartRequest { return wire.PartRequest{ID: id, Offset: offset, Size: 32 * k} }
	kit.Eventually(t, "the first part is taken", func() bool {
		_, err := node.Request(subject.CallSubject("edge.1", "none"), nil, time.Second)
		return err == nil
	})
	for _, step := range []struct {
		name    string
		req     wire.PartRequest
		data    string
		lacking bool
		refused bool
	}{
		{name: "the first", req: at(0), data: payload[:8*k]},
		{name: "again", req: at(0), data: payload[:8*k]},
		{name: "the last without the one before", req: at(24 * k), data: payload[24*k:], lacking: true},
		{name: "smaller than any", req: at(8 * k), data: payload[8*k : 9*k], refused: true},
		{name: "from the beginning, larger", req: at(0), data: payload[:16*k]},
		{name: "the second", req: at(16 * k), data: payload[16*k : 24*k]},
		{name: "the last", req: at(24 * k), data: payload[24*k:]},
		{name: "another payload's", req: at(16 * k), data: payload[:16*k-1] + "x", lacking: true},
		{name: "all beyond the end", req: at(24 * k), data: payload[:9*k], refused: true},
		{name: "none", req: at(8 * k), refused: true},
		{name: "before it", req: at(-1), data: payload[:8*k], refused: true},
		{name: "of nothing", req: wire.PartRequest{ID: "x.>", Offset: 0, Size: k}, data: payload[:k], refused: true},
		{name: "too large", req: wire.PartRequest{ID: id, Offset: 0, Size: 1 << 30}, data: payload[:8*k], refused: true},
	} {
		if got := sendPart(t, node, step.req, step.data); got.Incomplete != step.lacking || (got.Error != "") != step.refused {
			t.Errorf("%s: %+v", step.name, got)
		}
	}
}

// However many parts a node sends, the parts of another node stay, and so do its own newest ones.
func TestChunkStore_BoundsBytesPerNode(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.Hub(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.HubTopology(1, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	parts, err := chunk.NewStore(nc, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	payload := strings.Repeat("0123456789abcdef", 32<<10) // 512 KiB
	put := func(node, order string, offset int) wire.PartReply {
		t.Helper()
		body, err := json.Marshal(wire.PartRequest{ID: chunk.PayloadID(order, []byte(payload)), Offset: offset, Size: len(payload)})
		if err != nil {
			t.Fatal(err)
		}
		reply, err := parts.Handle(t.Context(), node, append(append(body, '\n'), payload[offset:offset+len(payload)/2]...))
		if err != nil {
			t.Fatal(err)
		}
		return reply.(wire.PartReply)
	}
	put("good", "1", 0)
	const most = 40 << 20
	for i := range 2 * most / (len(payload) / 2) {
		put("bad", fmt.Sprint(i), 0)
	}
	put("bad", "7000", 0)
	if put("bad", "7000", len(payload)/2).Incomplete || put("good", "1", len(payload)/2).Incomplete {
		t.Error("a payload is lacking")
	}
	stream, err := js.Stream(t.Context(), subject.PartStream)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Bytes; n > most {
		t.Errorf("%d bytes are kept", n)
	}
}
