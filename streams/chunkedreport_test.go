package streams_test

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
	"github.com/frond-edge/frond/leaf/leaftest"
	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/streams/streamstest"
)

// upward is a gateway's outbox with its pumps, behind a slow link, and what the cloud was given.
type upward struct {
	*testing.T
	slow   *streamstest.Slow
	leaf   *leaftest.Leaf
	outbox *streams.Outbox
	hub    jetstream.JetStream

	mu    sync.Mutex
	given []wire.Message // guarded by mu
}

func (u *upward) handle(_ context.Context, m wire.Message) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.given = append(u.given, m)
	return nil
}

// last is the last that the cloud was given of an object.
func (u *upward) last(name string) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, m := range slices.Backward(u.given) {
		if m.Key.Name == name {
			return string(m.Object)
		}
	}
	return ""
}

// newUpward links a gateway at so many bytes a second. Both ends drop a link that is silent for some 2 s.
func newUpward(t *testing.T, rate int) *upward {
	t.Helper()
	return upwardTo(t, rate, streams.VerbPart)
}

// upwardTo links a gateway to a cloudcore that takes parts on a verb.
func upwardTo(t *testing.T, rate int, verb string) *upward {
	t.Helper()
	hub := leaftest.NewHub(t)
	u := &upward{T: t}
	nc := hub.Conn()
	var err error
	if u.hub, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), u.hub, streams.Hub(1)); err != nil {
		t.Fatal(err)
	}
	log, metrics := zaptest.NewLogger(t), streams.NewMetrics(nil)
	parts, err := streams.NewParts(nc, log)
	if err != nil {
		t.Fatal(err)
	}
	calls, err := streams.NewCalls(nc, map[string]streams.CallHandler{verb: parts.Handle}, metrics, log)
	if err != nil {
		t.Fatal(err)
	}
	run(t, calls.Start)
	u.slow = streamstest.NewSlow(t, hub.Addr(), rate)
	u.leaf = leaftest.StartLeaf(t, leaf.Config{Hub: []string{leaftest.URL(u.slow.Addr())}})
	own := u.leaf.Client()
	js, err := jetstream.New(own)
	if err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), js, streams.Leaf()); err != nil {
		t.Fatal(err)
	}
	if u.outbox, err = streams.NewOutbox("edge-1", "s1", own); err != nil {
		t.Fatal(err)
	}
	for _, plane := range []streams.Plane{streams.Report, streams.Event} {
		pump, err := streams.NewPump(plane, own, linkOf{u.leaf}, metrics, log)
		if err != nil {
			t.Fatal(err)
		}
		reports, err := streams.NewReports(plane, nc, u.handle, nil, metrics, log)
		if err != nil {
			t.Fatal(err)
		}
		run(t, reports.Start)
		run(t, pump.Start)
	}
	return u
}

// report puts an object of so many bytes that do not compress well into the outbox, and returns it.
func (u *upward) report(put func(context.Context, wire.Message) error, name, version string, bytes int) string {
	u.Helper()
	m := large(name, version, bytes)
	if err := put(u.Context(), wire.Message{Key: m.Key, Op: wire.Apply, UID: m.UID, Object: m.Object}); err != nil {
		u.Fatal(err)
	}
	return string(m.Object)
}

// partsLeft is how many parts the hub holds.
func (u *upward) partsLeft() uint64 {
	u.Helper()
	stream, err := u.hub.Stream(u.Context(), streams.PartStream)
	if err != nil {
		u.Fatal(err)
	}
	return stream.CachedInfo().State.Msgs
}

// A report and an event that stand on the link for longer than it may be silent arrive, in spite of a cut with what went before it;
// the link stays up otherwise, and small ones do not wait behind them.
func TestLargeReportsGoInParts(t *testing.T) {
	const size, rate = 250 << 10, 50 << 10
	u := newUpward(t, rate)
	small := u.report(u.outbox.Report, "small", "0", 10)
	within(t, time.Minute, "the first report", func() bool { return u.last("small") == small })
	before := u.slow.Up()
	event, report := u.report(u.outbox.ReportEvent, "event", "1", size), u.report(u.outbox.Report, "huge", "1", size)
	overtaken, cut := false, false
	for i := 1; u.last("huge") != report || u.last("event") != event; i++ {
		began := time.Now()
		small := u.report(u.outbox.Report, "small", fmt.Sprint(i), 10)
		within(t, time.Minute, "a small report", func() bool { return u.last("small") == small })
		t.Logf("small report %d after %s", i, time.Since(began).Round(time.Millisecond))
		overtaken = overtaken || u.last("huge") == "" && u.last("event") == ""
		if !cut && u.slow.Up()-before > size {
			cut = true
			state, changed := u.leaf.WatchLink()
			u.slow.Cut()
			for state.Up {
				<-changed
				state, changed = u.leaf.WatchLink()
			}
			within(t, time.Minute, "another link", func() bool { state, _ := u.leaf.WatchLink(); return state.Up })
		}
		if time.Since(began) > time.Minute {
			t.Fatal("never")
		}
	}
	sent := u.slow.Up() - before
	t.Logf("%.2f times the bytes of both went over the link", float64(sent)/(2*size))
	if !overtaken || !cut {
		t.Errorf("a small report came first: %t; the link was cut: %t", overtaken, cut)
	}
	if sent > 2*size*12/10+3*rate { // two parts on their way at the cut, and small ones
		t.Errorf("%d bytes for two reports of %d", sent, size)
	}
	within(t, time.Minute, "no part is left", func() bool { return u.partsLeft() == 0 })
}

// What replaces a large report on its way goes at once, and the older state never comes after it.
func TestALargeReportOnItsWayIsReplaced(t *testing.T) {
	u := newUpward(t, 20<<10)
	u.report(u.outbox.Report, "a", "1", 400<<10) // 20 s
	within(t, time.Minute, "parts on their way", func() bool { return u.partsLeft() > 1 })
	small := u.report(u.outbox.Report, "a", "2", 10)
	within(t, time.Minute, "what replaced it", func() bool { return u.last("a") == small })
	again := u.report(u.outbox.Report, "a", "3", 60<<10)
	within(t, time.Minute, "and what replaced that", func() bool { return u.last("a") == again })
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, m := range u.given {
		if v := version(string(m.Object)); v == "1" {
			t.Error("the first state came")
		}
	}
}

// States that were replaced while another large report is carried do not pile up.
func TestReplacedLargeReportsDoNotWait(t *testing.T) {
	if n := streams.Queued(100); n != 1 {
		t.Errorf("%d of 100 states of one object wait", n)
	}
}

// To a cloudcore that does not know of parts a large report goes whole, as it did.
func TestALargeReportToAnOlderCloudcore(t *testing.T) {
	u := upwardTo(t, 1<<20, "another")
	whole := u.report(u.outbox.Report, "huge", "1", 100<<10)
	within(t, time.Minute, "the report", func() bool { return u.last("huge") == whole })
	if n := u.partsLeft(); n != 0 {
		t.Errorf("%d parts", n)
	}
}

// With a new link the last part of a payload is sent again, as its report may have been handled and the parts be gone.
func TestAWholePayloadIsProvedAgain(t *testing.T) {
	if at := streams.ProveAgain(100, 70, 100); at != 70 {
		t.Errorf("a whole payload goes on at %d", at)
	}
	if at := streams.ProveAgain(70, 40, 100); at != 70 {
		t.Errorf("half a payload goes on at %d", at)
	}
}

// ask is what a cloudcore answers to a part.
func ask(t *testing.T, nc *nats.Conn, req wire.PartRequest, data string) (reply wire.PartReply) {
	t.Helper()
	body, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	msg, err := nc.Request(streams.CallSubject("edge.1", streams.VerbPart), append(append(body, '\n'), data...), 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(msg.Data, &reply); err != nil {
		t.Fatal(err)
	}
	return reply
}

// Parts are taken in any size, again, and from the beginning; what is no part, or of another payload, is told.
func TestPartsOfAPayload(t *testing.T) {
	hub := streamstest.Hub(t)
	nc := streamstest.Connect(t, hub)
	parts, err := streams.NewParts(nc, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	calls, err := streams.NewCalls(nc, map[string]streams.CallHandler{streams.VerbPart: parts.Handle}, streams.NewMetrics(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	run(t, calls.Start)
	node := streamstest.Node(t, hub, "edge.1")
	const k = 1 << 10
	payload := strings.Repeat("0123456789abcdef", 2*k) // 32 KiB
	id := streams.IDOfParts("7", payload)
	at := func(offset int) wire.PartRequest { return wire.PartRequest{ID: id, Offset: offset, Size: 32 * k} }
	streamstest.Eventually(t, "the first part is taken", func() bool {
		_, err := node.Request(streams.CallSubject("edge.1", "none"), nil, time.Second)
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
		if got := ask(t, node, step.req, step.data); got.Lacking != step.lacking || (got.Error != "") != step.refused {
			t.Errorf("%s: %+v", step.name, got)
		}
	}
}

// However many parts a node sends, those of another stay, and its own newest.
func TestPartsOfOneNodeAreBounded(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.Hub(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), js, streams.Hub(1)); err != nil {
		t.Fatal(err)
	}
	parts, err := streams.NewParts(nc, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	payload := strings.Repeat("0123456789abcdef", 32<<10) // 512 KiB
	put := func(node, order string, offset int) wire.PartReply {
		t.Helper()
		body, err := json.Marshal(wire.PartRequest{ID: streams.IDOfParts(order, payload), Offset: offset, Size: len(payload)})
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
	if put("bad", "7000", len(payload)/2).Lacking || put("good", "1", len(payload)/2).Lacking {
		t.Error("a payload is lacking")
	}
	stream, err := js.Stream(t.Context(), streams.PartStream)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Bytes; n > most {
		t.Errorf("%d bytes are kept", n)
	}
}
