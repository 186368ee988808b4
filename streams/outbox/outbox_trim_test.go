package outbox_test

import (
	"fmt"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestOutbox_TrimEventsKeepsNewest(t *testing.T) {
	l, o, js := streamstest.StartOutbox(t, t.TempDir())
	defer l.Stop()
	for i := range 20 {
		if err := o.ReportEvent(t.Context(), streamstest.PodReport(fmt.Sprint("e", i))); err != nil {
			t.Fatal(err)
		}
		if err := o.Report(t.Context(), streamstest.PodReport(fmt.Sprint("p", i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []uint64{15, 0} {
		if n, err := o.TrimEvents(t.Context(), 5); err != nil || n != want {
			t.Errorf("dropped %d, %v; want %d", n, err, want)
		}
	}
	for name, want := range map[string]jetstream.StreamState{
		subject.OutboxEventsStream: {Msgs: 5, FirstSeq: 16}, // the newest are kept
		subject.OutboxStream:       {Msgs: 20, FirstSeq: 1},
	} {
		s, err := js.Stream(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.CachedInfo().State; got.Msgs != want.Msgs || got.FirstSeq != want.FirstSeq {
			t.Errorf("%s holds %d from %d, want %d from %d", name, got.Msgs, got.FirstSeq, want.Msgs, want.FirstSeq)
		}
	}
}
