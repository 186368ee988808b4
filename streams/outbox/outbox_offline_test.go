package outbox_test

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/outbox"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit/leaftest"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// leafLink is a leaf's link with the interface that the pump needs.
type leafLink struct{ *leaftest.Leaf }

func (l leafLink) State() (bool, <-chan struct{}) {
	state, changed := l.WatchLink()
	return state.Up, changed
}

// A gateway reports without a link, is rebooted, and gets its link only then. The last state of each object and each event arrive in the
// order of their creation, with their original times.
func TestOutbox_SurvivesRebootOffline(t *testing.T) {
	dir := t.TempDir()
	l, o, _ := streamstest.StartOutbox(t, dir)
	made := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	for i := range 60 {
		m := streamstest.PodReport(fmt.Sprint("p", i%6))
		m.Time = made.Add(time.Duration(i) * time.Second)
		m.Object = fmt.Appendf(nil, `{"metadata":{},"i":%d}`, i)
		if err := o.Report(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		m.Key.Resource, m.Key.Name = "events", fmt.Sprint("e", i)
		if err := o.ReportEvent(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	l.Stop()

	hub := leaftest.NewHub(t)
	cloud, err := jetstream.New(hub.Conn())
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), cloud, topology.HubTopology(1, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	l = leaftest.StartLeaf(t, leaf.Config{Dir: dir, Hub: []string{leaftest.URL(hub.Addr())}})
	nc := l.Client()
	for _, plane := range []subject.Plane{subject.Report, subject.Event} {
		pump, err := outbox.NewPump(plane, nc, nc, leafLink{l}, metrics.New(nil), zaptest.NewLogger(t))
		if err != nil {
			t.Fatal(err)
		}
		streamstest.StartPart(t, pump.Start)
	}
	for name, want := range map[string]int{subject.ReportStream: 6, subject.EventStream: 60} {
		arrived := awaitArrivals(t, cloud, name, want)
		if !slices.IsSortedFunc(arrived, func(a, b arrivedReport) int { return cmp.Compare(a.order, b.order) }) {
			t.Errorf("%s: not in order: %v", name, arrived)
		}
		for i, a := range arrived {
			// The last six states are those of the last six seconds.
			if then := made.Add(time.Duration(60-want+i) * time.Second); !a.time.Equal(then) {
				t.Errorf("%s: report %d was made at %s, the cloud reads %s", name, i, then, a.time)
			}
		}
	}
}

type arrivedReport struct {
	order int64
	time  time.Time
}

// awaitArrivals waits until a hub stream holds n messages and returns them in order of arrival.
func awaitArrivals(t *testing.T, js jetstream.JetStream, stream string, n int) (list []arrivedReport) {
	t.Helper()
	s, err := js.Stream(t.Context(), stream)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(time.Minute)
	for {
		info, err := s.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if info.State.Msgs == uint64(n) { //nolint:gosec // a small number
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s holds %d messages, want %d", stream, info.State.Msgs, n)
		}
		<-time.After(20 * time.Millisecond)
	}
	for seq := s.CachedInfo().State.FirstSeq; len(list) < n; seq++ {
		m, err := s.GetMsg(t.Context(), seq, jetstream.WithGetMsgSubject(">"))
		if err != nil {
			t.Fatal(err)
		}
		seq = m.Sequence
		order, err := strconv.ParseInt(m.Header.Get("Frond-Order"), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		made, err := time.Parse(time.RFC3339Nano, m.Header.Get("Frond-Time"))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, arrivedReport{order, made})
	}
	return list
}
