package streams_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

// reportRecorder records the reports that a handler received.
type reportRecorder struct {
	mu       sync.Mutex
	messages map[wire.Key][]wire.Message // guarded by mu
	err      error                       // guarded by mu; returned once
}

func (a *reportRecorder) recordReport(_ context.Context, m wire.Message) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.err; err != nil {
		a.err = nil
		return err
	}
	a.messages[m.Key] = append(a.messages[m.Key], m)
	return nil
}

func (a *reportRecorder) lastObject(name string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.messages[configMapKey(name)]
	if len(list) == 0 {
		return ""
	}
	return string(list[len(list)-1].Object)
}

// startReporting wires an outbox and its pump to a handler through one server, which plays both the leaf and the hub.
func startReporting(t *testing.T, hub *server.Server, link streams.Link, a *reportRecorder) (*streams.Outbox, *streams.ReportConsumer, *prometheus.Registry) {
	t.Helper()
	nc := streamstest.Connect(t, hub)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), js, streams.LeafTopology()); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	metrics := streams.NewMetrics(reg)
	outbox, err := streams.NewOutbox("edge.1", "s1", nc)
	if err != nil {
		t.Fatal(err)
	}
	pump, err := streams.NewPump(streams.Report, nc, link, metrics, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	reports, err := streams.NewReportConsumer(streams.Report, nc, a.recordReport, nil, metrics, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, reports.Start)
	startPart(t, pump.Start)
	return outbox, reports, reg
}

func reportOf(name, value string) wire.Message {
	return wire.Message{Key: configMapKey(name), Op: wire.Apply, UID: "u", Object: fmt.Appendf(nil, `{"s":%q}`, value)}
}

func TestOutbox_OfflineReportsArriveOnceWithLastValue(t *testing.T) {
	hub, link := streamstest.Hub(t), newSwitchableLink()
	a := &reportRecorder{messages: map[wire.Key][]wire.Message{}}
	link.setUp(false)
	outbox, _, _ := startReporting(t, hub, link, a)
	for i := range 50 {
		if err := outbox.Report(t.Context(), reportOf("a", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := outbox.Report(t.Context(), reportOf("b", "x")); err != nil {
		t.Fatal(err)
	}
	link.setUp(true)
	streamstest.Eventually(t, "the reports", func() bool { return a.lastObject("a") == `{"s":"49"}` && a.lastObject("b") == `{"s":"x"}` })
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.messages[configMapKey("a")]); n != 1 {
		t.Errorf("the object was reported %d times, want once", n)
	}
	if m := a.messages[configMapKey("a")][0]; m.Node != "edge.1" || m.StoreEpoch != "s1" || m.Order == 0 || m.Time.IsZero() {
		t.Errorf("report %+v lacks its origin", m)
	}
}

// A copy of a gateway's disk continues the same sequence numbers as the gateway. The reports of one are not repetitions of the other's.
func TestPump_ReportOfCopiedDiskIsNoDuplicate(t *testing.T) {
	hub, link := streamstest.Hub(t), newSwitchableLink()
	a := &reportRecorder{messages: map[wire.Key][]wire.Message{}}
	link.setUp(true)
	for _, value := range []string{"the gateway's", "the copy's"} {
		ok := t.Run(value, func(t *testing.T) {
			outbox, _, _ := startReporting(t, hub, link, a)
			if err := outbox.Report(t.Context(), reportOf("a", value)); err != nil {
				t.Fatal(err)
			}
			streamstest.Eventually(t, "the report", func() bool { return a.lastObject("a") == fmt.Sprintf(`{"s":%q}`, value) })
		})
		if !ok {
			return
		}
		for _, cfg := range streams.LeafTopology().Streams { // the next one counts from one
			js, err := jetstream.New(streamstest.Connect(t, hub))
			if err != nil {
				t.Fatal(err)
			}
			if err := js.DeleteStream(t.Context(), cfg.Name); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Reports that were in flight when the hub stopped accepting are sent again as soon as it accepts, and not only after the outbox's
// timeout.
func TestPump_UnackedReportsAreReleasedAtOnce(t *testing.T) {
	hub := streamstest.Hub(t)
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), js, streams.LeafTopology()); err != nil {
		t.Fatal(err)
	}
	consumer, err := js.Consumer(t.Context(), streams.OutboxStream, "pump")
	if err != nil {
		t.Fatal(err)
	}
	patient := consumer.CachedInfo().Config
	patient.AckWait = time.Hour
	a := &reportRecorder{messages: map[wire.Key][]wire.Message{}}
	link := newSwitchableLink()
	link.setUp(false)
	outbox, _, _ := startReporting(t, hub, link, a)
	if _, err := js.UpdateConsumer(t.Context(), streams.OutboxStream, patient); err != nil {
		t.Fatal(err)
	}
	const many = 100
	for i := range many {
		if err := outbox.Report(t.Context(), reportOf(fmt.Sprint("o", i), "x")); err != nil {
			t.Fatal(err)
		}
	}
	config, err := js.Stream(t.Context(), streams.ReportStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), streams.ReportStream); err != nil {
		t.Fatal(err)
	}
	link.setUp(true)
	streamstest.Eventually(t, "reports that were read ahead and given back", func() bool {
		now, err := consumer.Info(t.Context())
		return err == nil && now.Delivered.Consumer > 2*32 // a full window, and another one
	})
	if _, err := js.CreateStream(t.Context(), config.CachedInfo().Config); err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), js, streams.HubTopology(1)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		now, err := consumer.Info(context.WithoutCancel(t.Context()))
		t.Logf("the outbox: %+v, %v", now, err)
	}()
	streamstest.Eventually(t, "all reports", func() bool {
		for i := range many {
			if a.lastObject(fmt.Sprint("o", i)) == "" {
				return false
			}
		}
		return true
	})
}

func TestReportConsumer_RetriesErrorsButNotMalformed(t *testing.T) {
	hub := streamstest.Hub(t)
	a := &reportRecorder{messages: map[wire.Key][]wire.Message{}, err: errors.New("apiserver is away")}
	outbox, _, reg := startReporting(t, hub, newSwitchableLink(), a)
	nc := streamstest.Connect(t, hub)
	for _, data := range []string{"", "null", "[]", "{"} {
		if err := nc.PublishMsg(&nats.Msg{Subject: "report.edge_1.core.pods.default.bad" + fmt.Sprint(len(data)), Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := outbox.Report(t.Context(), reportOf("a", "1")); err != nil {
		t.Fatal(err)
	}
	streamstest.Eventually(t, "the report after a failure", func() bool { return a.lastObject("a") == `{"s":"1"}` })
	streamstest.Eventually(t, "the dead letters", func() bool { return countDeadLetters(t, reg, "report") == 4 })
}

func TestReportConsumer_StillLast(t *testing.T) {
	hub := streamstest.Hub(t)
	blocked := make(chan wire.Message)
	var mu sync.Mutex
	var verdicts []bool
	var reports *streams.ReportConsumer
	nc := streamstest.Connect(t, hub)
	handle := func(ctx context.Context, m wire.Message) error {
		before, err := reports.StillLast(ctx, m)
		if err != nil {
			return err
		}
		blocked <- m // now the test publishes a newer one
		<-blocked
		after, err := reports.StillLast(ctx, m)
		mu.Lock()
		defer mu.Unlock()
		verdicts = append(verdicts, before, after)
		return err
	}
	reports, err := streams.NewReportConsumer(streams.Report, nc, handle, nil, streams.NewMetrics(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, reports.Start)
	publish := func(value string) {
		t.Helper()
		msg := &nats.Msg{Subject: "report.edge_1.core.pods.default.a", Data: []byte(value), Header: nats.Header{
			"Frond-Version": {"1"}, "Frond-Op": {"apply"}, "Frond-Time": {"2026-01-01T00:00:00Z"},
		}}
		if _, err := nc.RequestMsg(msg, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	publish(`{"s":"1"}`)
	<-blocked
	publish(`{"s":"2"}`)
	blocked <- wire.Message{}
	<-blocked
	blocked <- wire.Message{}
	streamstest.Eventually(t, "both handled", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(verdicts) == 4
	})
	if want := []bool{true, false, true, true}; !slices.Equal(verdicts, want) {
		t.Errorf("before and after a newer report: %v, want %v", verdicts, want)
	}
}

// The consumer's server may deliver a message before the queried server has it: that is no proof that it was replaced.
func TestReportConsumer_StillLastIgnoresLaggingServer(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.Hub(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	reports, err := streams.NewReportConsumer(streams.Report, nc, nil, nil, streams.NewMetrics(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string) uint64 {
		t.Helper()
		ack, err := js.Publish(t.Context(), streams.Subject(streams.Report, "edge.1", configMapKey(name)), []byte(`{}`))
		if err != nil {
			t.Fatal(err)
		}
		return ack.Sequence
	}
	first := put("a")
	for name, tt := range map[string]struct {
		object   string
		sequence uint64
		last     bool
		lagging  bool
	}{
		"there":                                  {"a", first, true, false},
		"the server has an older one only":       {"a", first + 1, false, true},
		"the server knows nothing of the object": {"b", first + 1, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			last, err := reports.StillLast(t.Context(), wire.Message{Node: "edge.1", Key: configMapKey(tt.object), Sequence: tt.sequence})
			if last != tt.last || (err != nil) != tt.lagging {
				t.Errorf("still last: %v, %v", last, err)
			}
		})
	}
	second := put("a")
	if last, err := reports.StillLast(t.Context(), wire.Message{Node: "edge.1", Key: configMapKey("a"), Sequence: first}); last || err != nil {
		t.Errorf("a replaced report is still last: %v, %v", last, err)
	}
	stream, err := js.Stream(t.Context(), streams.ReportStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if last, err := reports.StillLast(t.Context(), wire.Message{Node: "edge.1", Key: configMapKey("a"), Sequence: second}); last || err != nil {
		t.Errorf("a handled report is still last: %v, %v", last, err)
	}
}
