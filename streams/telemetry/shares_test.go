package telemetry_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/telemetry"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// sharedStream is a hub's stream with room for 8 MiB, which several cloudcores fill.
type sharedStream struct {
	*testing.T
	kind    telemetry.Kind
	stream  jetstream.Stream
	metrics *prometheus.Registry
	handle  func(node string, request []byte)
	// restart replaces the cloudcore by one that has just started.
	restart func()
}

func newSharedStream(t *testing.T, kind telemetry.Kind) *sharedStream {
	t.Helper()
	const room = 8 << 20
	hub := streamstest.Hub(t)
	nc := streamstest.Connect(t, hub)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	s := &sharedStream{T: t, kind: kind, metrics: prometheus.NewRegistry()}
	if s.stream, err = js.Stream(t.Context(), kind.HubStream); err != nil {
		t.Fatal(err)
	}
	cfg := s.stream.CachedInfo().Config
	cfg.MaxBytes = room
	if _, err := js.UpdateStream(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	counted := telemetry.NewReceiverMetrics(kind, s.metrics)
	var receiver *telemetry.Receiver
	s.restart = func() {
		var err error
		if kind.HubStream == subject.TelemetryStream {
			receiver, err = telemetry.NewReceiver(nc, assigned, counted, metrics.New(nil), zaptest.NewLogger(t))
		} else {
			receiver, err = telemetry.NewMessageReceiver(nc, counted, metrics.New(nil), zaptest.NewLogger(t))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s.restart()
	s.handle = func(node string, request []byte) {
		t.Helper()
		if _, err := receiver.Handle(t.Context(), node, request); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// count returns how many messages the stream has of a node.
func (s *sharedStream) count(node string) (n uint64) {
	s.Helper()
	info, err := s.stream.Info(s.Context(), jetstream.WithSubjectFilter(s.kind.All(node)))
	if err != nil {
		s.Fatal(err)
	}
	for _, messages := range info.State.Subjects {
		n += messages
	}
	return n
}

// trimmed returns how many messages of a node are counted as removed.
func (s *sharedStream) trimmed(node string) (n float64) {
	s.Helper()
	families, err := s.metrics.Gather()
	if err != nil {
		s.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "frond_"+s.kind.Prefix+"_trimmed_total" && m.GetLabel()[0].GetValue() == node {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return n
}

// One node that floods a stream loses its own oldest messages; what other nodes have sent stays, whichever cloudcore takes the flood, also one that has
// just started and has seen none of it.
func TestReceiver_FloodTakesNothingFromOthers(t *testing.T) {
	value := strings.Repeat("x", 900)
	for name, c := range map[string]struct {
		kind telemetry.Kind
		line string // with the number
		// restarts: cloudcores are replaced meanwhile.
		restarts bool
	}{
		"samples":  {telemetry.Samples(), `{"n":%d,"s":"plant","d":"boiler","p":"c","v":"` + value + `"}`, true},
		"messages": {telemetry.Messages(), `{"n":%d,"m":"a/user/b","f":"internal","b":"` + strings.Repeat("AAAA", 225) + `"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSharedStream(t, c.kind)
			const others, each = 3, 100
			request := func(from, count int) []byte {
				var lines []string
				for i := range count {
					lines = append(lines, fmt.Sprintf(c.line, from+i+1))
				}
				return telemetry.Request(t, "a", strings.Join(lines, "\n"))
			}
			for i := range others {
				s.handle(fmt.Sprint("quiet-", i), request(0, each))
			}
			const batch, flood = 200, 12_000 // more than the stream's room
			for n := 0; n < flood; n += batch {
				if c.restarts && n%(10*batch) == 0 {
					s.restart()
				}
				s.handle("flood", request(n, batch))
			}
			for i := range others {
				node := fmt.Sprint("quiet-", i)
				if n := s.count(node); n != each || s.trimmed(node) != 0 {
					t.Errorf("%s has %d messages of %d, and %g are removed", node, n, each, s.trimmed(node))
				}
			}
			has := s.count("flood")
			if has < 3000 || float64(has)+s.trimmed("flood") != flood {
				t.Errorf("the node that floods has %d messages of %d, and %g are counted", has, flood, s.trimmed("flood"))
			}
			last, err := s.stream.GetLastMsgForSubject(t.Context(), c.kind.All("flood"))
			if err != nil {
				t.Fatal(err)
			}
			if number := last.Header.Get(telemetry.HeaderNumber); number != fmt.Sprint(flood) {
				t.Errorf("its last message has the number %s", number)
			}
		})
	}
}
