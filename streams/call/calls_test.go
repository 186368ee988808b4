package call_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// A node that calls without end gets a clear refusal, and the calls of other nodes are not delayed.
func TestCallServer_BusyNodeDelaysNoOther(t *testing.T) {
	hub := streamstest.Hub(t)
	reg := prometheus.NewRegistry()
	release := make(chan struct{})
	calls, err := call.NewServer(streamstest.Connect(t, hub), map[string]call.Handler{
		"hang": func(ctx context.Context, _ string, _ []byte) (any, error) {
			select {
			case <-release:
			case <-ctx.Done():
			}
			return struct{}{}, nil
		},
		subject.VerbPing: func(context.Context, string, []byte) (any, error) { return struct{}{}, nil },
	}, metrics.New(reg), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, calls.Start)
	defer close(release)
	good := streamstest.Node(t, hub, "good")
	ping := func() bool {
		var reply struct{ Error string }
		return call.Call(t.Context(), good, "good", subject.VerbPing, struct{}{}, &reply) == nil && reply.Error == ""
	}
	kit.Eventually(t, "the cloud answers", ping)

	bad := streamstest.Connect(t, hub)
	refused := make(chan string, 1000)
	inbox := subject.InboxPrefix("bad") + ".x"
	sub, err := bad.Subscribe(inbox, func(msg *nats.Msg) { refused <- string(msg.Data) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	for range 500 {
		if err := bad.PublishRequest(subject.CallSubject("bad", "hang"), inbox, []byte(`{}`)); err != nil {
			t.Fatal(err)
		}
	}
	kit.Eventually(t, "all but 64 are refused", func() bool {
		return streamstest.SumCounters(t, reg, "frond_calls_total", "busy") == 500-64 && len(refused) == 500-64
	})
	var answer struct{ Error string }
	if err := json.Unmarshal([]byte(<-refused), &answer); err != nil || !strings.Contains(answer.Error, "wait already") {
		t.Errorf("answer %+v, %v", answer, err)
	}
	if !ping() {
		t.Error("another node's call is not answered")
	}
}

// A call to Kubernetes may hold a token or a Secret, and many can read the stream of dead letters.
func TestCallServer_DeadLetterWithholdsPayload(t *testing.T) {
	hub := streamstest.Hub(t)
	nc := streamstest.Connect(t, hub)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.HubTopology(1, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	calls, err := call.NewServer(nc, map[string]call.Handler{
		subject.VerbKube: func(_ context.Context, _ string, request []byte) (any, error) {
			return nil, call.DecodeRequest(request, &struct{}{})
		},
	}, metrics.New(prometheus.NewRegistry()), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, calls.Start)
	stream, err := js.Stream(t.Context(), subject.DeadLetterStream)
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{subject.VerbKube, subject.VerbPart, "renew"} {
		var letter string
		kit.Eventually(t, "the dead letter", func() bool {
			subj := subject.CallSubject("a", verb)
			if err := nc.PublishRequest(subj, subject.InboxPrefix("a")+".x", []byte(`["token swordfish"]`)); err != nil {
				t.Fatal(err)
			}
			msg, err := stream.GetLastMsgForSubject(t.Context(), "dead.>")
			if err == nil {
				letter = string(msg.Data)
			}
			return err == nil && msg.Header.Get("Frond-Subject") == subj
		})
		if strings.Contains(letter, "swordfish") || !strings.Contains(letter, "withheld: 19 bytes") {
			t.Errorf("the dead letter of %s is %q", verb, letter)
		}
	}
}

// While dead letters cannot be stored, malformed heartbeats must not delay the heartbeats of other nodes.
func TestHeartbeats_MalformedDelayNoOther(t *testing.T) {
	hub := streamstest.Hub(t)
	nc := streamstest.Connect(t, hub)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), subject.DeadLetterStream); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	var heard atomic.Uint64
	beats, err := call.NewHeartbeats(streamstest.Connect(t, hub), func(_ context.Context, _ string, beat wire.Heartbeat) {
		heard.Store(beat.Sequence)
	}, metrics.New(reg), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, beats.Start)
	publish := func(node string, sequence uint64) {
		t.Helper()
		if err := nc.Publish(subject.HeartbeatSubject(node), fmt.Appendf(nil, `{"sequence":%d}`, sequence)); err != nil {
			t.Fatal(err)
		}
	}
	kit.Eventually(t, "a beat", func() bool { publish("good", 1); return heard.Load() == 1 })
	for i := range 500 {
		if err := nc.Publish(subject.HeartbeatSubject(fmt.Sprint("bad-", i)), []byte("garbage")); err != nil {
			t.Fatal(err)
		}
	}
	publish("good-2", 2)
	kit.Eventually(t, "the beat after the garbage", func() bool { return heard.Load() == 2 })
	if n := streamstest.SumCounters(t, reg, "frond_garbage_dropped_total", "beat"); n == 0 {
		t.Error("garbage that was not kept is not counted")
	}
}
