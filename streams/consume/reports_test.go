package consume_test

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
	"github.com/frond-edge/frond/streams/consume"
	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// startReporting wires an outbox and its pump to a handler through one server, which plays both the leaf and the hub.
func startReporting(t *testing.T, hub *server.Server, link link.Link, a *streamstest.ReportRecorder) (*outbox.Outbox, *consume.ReportConsumer, *prometheus.Registry) {
	t.Helper()
	nc := streamstest.Connect(t, hub)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.LeafTopology()); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	metrics := metrics.New(reg)
	sink, err := outbox.New("edge.1", "s1", nc)
	if err != nil {
		t.Fatal(err)
	}
	pump, err := outbox.NewPump(subject.Report, nc, nc, link, metrics, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	reports, err := consume.NewReportConsumer(subject.Report, nc, a.RecordReport, nil, metrics, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, reports.Start)
	streamstest.StartPart(t, pump.Start)
	return sink, reports, reg
}

func TestOutbox_OfflineReportsArriveOnceWithLastValue(t *testing.T) {
	hub, link := streamstest.Hub(t), streamstest.NewSwitchableLink()
	a := &streamstest.ReportRecorder{Messages: map[wire.Key][]wire.Message{}}
	link.SetUp(false)
	sink, _, _ := startReporting(t, hub, link, a)
	for i := range 50 {
		if err := sink.Report(t.Context(), streamstest.ReportOf("a", fmt.Sprint(i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := sink.Report(t.Context(), streamstest.ReportOf("b", "x")); err != nil {
		t.Fatal(err)
	}
	link.SetUp(true)
	kit.Eventually(t, "the reports", func() bool { return a.LastObject("a") == `{"s":"49"}` && a.LastObject("b") == `{"s":"x"}` })
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if n := len(a.Messages[streamstest.ConfigMapKey("a")]); n != 1 {
		t.Errorf("the object was reported %d times, want once", n)
	}
	if m := a.Messages[streamstest.ConfigMapKey("a")][0]; m.Node != "edge.1" || m.StoreEpoch != "s1" || m.Order == 0 || m.Time.IsZero() {
		t.Errorf("report %+v lacks its origin", m)
	}
}

// A copy of a gateway's disk continues the same sequence numbers as the gateway. The reports of one are not repetitions of the other's.
func TestPump_ReportOfCopiedDiskIsNoDuplicate(t *testing.T) {
	hub, link := streamstest.Hub(t), streamstest.NewSwitchableLink()
	a := &streamstest.ReportRecorder{Messages: map[wire.Key][]wire.Message{}}
	link.SetUp(true)
	for _, value := range []string{"the gateway's", "the copy's"} {
		ok := t.Run(value, func(t *testing.T) {
			sink, _, _ := startReporting(t, hub, link, a)
			if err := sink.Report(t.Context(), streamstest.ReportOf("a", value)); err != nil {
				t.Fatal(err)
			}
			kit.Eventually(t, "the report", func() bool { return a.LastObject("a") == fmt.Sprintf(`{"s":%q}`, value) })
		})
		if !ok {
			return
		}
		for _, cfg := range topology.LeafTopology().Streams { // the next one counts from one
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
	if err := topology.Ensure(t.Context(), js, topology.LeafTopology()); err != nil {
		t.Fatal(err)
	}
	consumer, err := js.Consumer(t.Context(), subject.OutboxStream, "pump")
	if err != nil {
		t.Fatal(err)
	}
	patient := consumer.CachedInfo().Config
	patient.AckWait = time.Hour
	a := &streamstest.ReportRecorder{Messages: map[wire.Key][]wire.Message{}}
	link := streamstest.NewSwitchableLink()
	link.SetUp(false)
	sink, _, _ := startReporting(t, hub, link, a)
	if _, err := js.UpdateConsumer(t.Context(), subject.OutboxStream, patient); err != nil {
		t.Fatal(err)
	}
	const many = 100
	for i := range many {
		if err := sink.Report(t.Context(), streamstest.ReportOf(fmt.Sprint("o", i), "x")); err != nil {
			t.Fatal(err)
		}
	}
	config, err := js.Stream(t.Context(), subject.ReportStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), subject.ReportStream); err != nil {
		t.Fatal(err)
	}
	link.SetUp(true)
	kit.Eventually(t, "reports that were read ahead and given back", func() bool {
		now, err := consumer.Info(t.Context())
		return err == nil && now.Delivered.Consumer > 2*32 // a full window, and another one
	})
	if _, err := js.CreateStream(t.Context(), config.CachedInfo().Config); err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.HubTopology(1, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	defer func() {
		now, err := consumer.Info(context.WithoutCancel(t.Context()))
		t.Logf("the outbox: %+v, %v", now, err)
	}()
	kit.Eventually(t, "all reports", func() bool {
		for i := range many {
			if a.LastObject(fmt.Sprint("o", i)) == "" {
				return false
			}
		}
		return true
	})
}

func TestReportConsumer_RetriesErrorsButNotMalformed(t *testing.T) {
	hub := streamstest.Hub(t)
	a := &streamstest.ReportRecorder{Messages: map[wire.Key][]wire.Message{}, Err: errors.New("apiserver is away")}
	sink, _, reg := startReporting(t, hub, streamstest.NewSwitchableLink(), a)
	nc := streamstest.Connect(t, hub)
	for _, data := range []string{"", "null", "[]", "{"} {
		if err := nc.PublishMsg(&nats.Msg{Subject: "report.edge_1.core.pods.default.bad" + fmt.Sprint(len(data)), Data: []byte(data)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := sink.Report(t.Context(), streamstest.ReportOf("a", "1")); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "the report after a failure", func() bool { return a.LastObject("a") == `{"s":"1"}` })
	kit.Eventually(t, "the dead letters", func() bool { return streamstest.CountDeadLetters(t, reg, "report") == 4 })
}

func TestReportConsumer_StillLast(t *testing.T) {
	hub := streamstest.Hub(t)
	blocked := make(chan wire.Message)
	var mu sync.Mutex
	var verdicts []bool
	var reports *consume.ReportConsumer
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
	reports, err := consume.NewReportConsumer(subject.Report, nc, handle, nil, metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, reports.Start)
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
	kit.Eventually(t, "both handled", func() bool {
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
	reports, err := consume.NewReportConsumer(subject.Report, nc, nil, nil, metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string) uint64 {
		t.Helper()
		ack, err := js.Publish(t.Context(), subject.Of(subject.Report, "edge.1", streamstest.ConfigMapKey(name)), []byte(`{}`))
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
			last, err := reports.StillLast(t.Context(), wire.Message{Node: "edge.1", Key: streamstest.ConfigMapKey(tt.object), Sequence: tt.sequence})
			if last != tt.last || (err != nil) != tt.lagging {
				t.Errorf("still last: %v, %v", last, err)
			}
		})
	}
	second := put("a")
	if last, err := reports.StillLast(t.Context(), wire.Message{Node: "edge.1", Key: streamstest.ConfigMapKey("a"), Sequence: first}); last || err != nil {
		t.Errorf("a replaced report is still last: %v, %v", last, err)
	}
	stream, err := js.Stream(t.Context(), subject.ReportStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if last, err := reports.StillLast(t.Context(), wire.Message{Node: "edge.1", Key: streamstest.ConfigMapKey("a"), Sequence: second}); last || err != nil {
		t.Errorf("a handled report is still last: %v, %v", last, err)
	}
}
