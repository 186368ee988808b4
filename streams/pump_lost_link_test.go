package streams_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// Messages in flight when the link broke are no longer answered. They must not delay messages over the next link until their timeout,
// because every broken link leaves some.
func TestPump_UnansweredPublishesDelayNothing(t *testing.T) {
	hub := streamstest.Hub(t)
	nc, link := streamstest.Connect(t, hub), newSwitchableLink()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), js, streams.LeafTopology()); err != nil {
		t.Fatal(err)
	}
	outbox, err := streams.NewOutbox("edge.1", "s1", nc)
	if err != nil {
		t.Fatal(err)
	}
	const many = 40 // more than a window
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
	taken := make(chan *nats.Msg, 1024) // more than arrive
	silent, err := streamstest.Connect(t, hub).ChanSubscribe("report.>", taken)
	if err != nil {
		t.Fatal(err)
	}
	pump, err := streams.NewSlowTimeoutPump(streams.Report, nc, link, streams.NewMetrics(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, pump.Start)
	streamstest.Eventually(t, "a window of reports on its way", func() bool { return len(taken) >= 32 })
	link.setUp(false)
	if err := silent.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), config.CachedInfo().Config); err != nil {
		t.Fatal(err)
	}
	if err := streams.Ensure(t.Context(), js, streams.HubTopology(1)); err != nil {
		t.Fatal(err)
	}
	a := &reportRecorder{messages: map[wire.Key][]wire.Message{}}
	reports, err := streams.NewReportConsumer(streams.Report, nc, a.recordReport, nil, streams.NewMetrics(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, reports.Start)
	link.setUp(true)
	streamstest.Eventually(t, "all reports over the next link", func() bool {
		for i := range many {
			if a.lastObject(fmt.Sprint("o", i)) == "" {
				return false
			}
		}
		return true
	})
}
