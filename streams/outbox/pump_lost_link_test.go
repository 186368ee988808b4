package outbox_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/consume"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// Messages in flight when the link broke are no longer answered. They must not delay messages over the next link until their timeout,
// because every broken link leaves some.
func TestPump_UnansweredPublishesDelayNothing(t *testing.T) {
	hub := streamstest.Hub(t)
	nc, link := streamstest.Connect(t, hub), streamstest.NewSwitchableLink()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.LeafTopology()); err != nil {
		t.Fatal(err)
	}
	sink, err := outbox.New("edge.1", "s1", nc)
	if err != nil {
		t.Fatal(err)
	}
	const many = 40 // more than a window
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
	taken := make(chan *nats.Msg, 1024) // more than arrive
	silent, err := streamstest.Connect(t, hub).ChanSubscribe("report.>", taken)
	if err != nil {
		t.Fatal(err)
	}
	pump, err := outbox.NewSlowTimeoutPump(subject.Report, nc, link, metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, pump.Start)
	kit.Eventually(t, "a window of reports on its way", func() bool { return len(taken) >= 32 })
	link.SetUp(false)
	if err := silent.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), config.CachedInfo().Config); err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.HubTopology(1, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	a := &streamstest.ReportRecorder{Messages: map[wire.Key][]wire.Message{}}
	reports, err := consume.NewReportConsumer(subject.Report, nc, a.RecordReport, nil, metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, reports.Start)
	link.SetUp(true)
	kit.Eventually(t, "all reports over the next link", func() bool {
		for i := range many {
			if a.LastObject(fmt.Sprint("o", i)) == "" {
				return false
			}
		}
		return true
	})
}

// TestPump_LostLinkMakesPartsSmaller: a link that is lost while a part of a large report waits for its answer may be lost because of the part, so the next
// one is smaller. The same part over and over would lose each link in the same way, and nothing would ever arrive.
func TestPump_LostLinkMakesPartsSmaller(t *testing.T) {
	hub := streamstest.Hub(t)
	nc, link := streamstest.Connect(t, hub), streamstest.NewSwitchableLink()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.LeafTopology()); err != nil {
		t.Fatal(err)
	}
	sink, err := outbox.New("edge.1", "s1", nc)
	if err != nil {
		t.Fatal(err)
	}
	parts := make(chan *nats.Msg, 64)                                                                                     // more than arrive
	if _, err := streamstest.Connect(t, hub).ChanSubscribe(subject.CallPrefix+"*."+subject.VerbPart, parts); err != nil { // never answers
		t.Fatal(err)
	}
	if err := sink.Report(t.Context(), streamstest.ReportOf("large", incompressible(200<<10))); err != nil {
		t.Fatal(err)
	}
	pump, err := outbox.NewSlowTimeoutPump(subject.Report, nc, link, metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, pump.Start)
	first := len((<-parts).Data)
	<-time.After(1200 * time.Millisecond) // less than a second shows nothing of a link
	link.SetUp(false)
	link.SetUp(true)
	if second := len((<-parts).Data); second > first*3/4 {
		t.Errorf("a part of %d bytes after one of %d", second, first)
	}
}

// incompressible returns a text of so many bytes.
func incompressible(size int) string {
	text := make([]byte, size)
	random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // a test
	for i := range text {
		text[i] = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_"[random.IntN(64)]
	}
	return string(text)
}
