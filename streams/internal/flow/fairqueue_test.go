package flow_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// jsonOfMiB returns a JSON object of the given size in MiB.
func jsonOfMiB(size int) []byte { return []byte(`{"x":"` + strings.Repeat("x", size<<20) + `"}`) }

// A node's reports take as much of a cloudcore's memory as a few large ones; the others wait in the stream. A single report is always
// accepted, and in the end all are handled.
func TestReportConsumer_BoundsBytesPerNode(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.Hub(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	const number = 10
	for i := range number {
		_, err := js.PublishMsg(t.Context(), &nats.Msg{
			Subject: subject.Of(subject.Report, "bad", streamstest.ConfigMapKey(fmt.Sprint("o", i))), Data: jsonOfMiB(3),
			Header: nats.Header{"Frond-Version": {"1"}, "Frond-Op": {"apply"}, "Frond-Time": {time.Now().Format(time.RFC3339Nano)}},
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	release := make(chan struct{})
	var handled atomic.Int32
	reg, _ := streamstest.StartReports(t, nc, func(ctx context.Context, m wire.Message) error {
		if m.Node == "bad" {
			select {
			case <-release:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		handled.Add(1)
		return nil
	}, nil)
	kit.Eventually(t, "all but 16 MiB are put off", func() bool {
		return streamstest.SumCounters(t, reg, "frond_reports_total", "crowded") >= number-5
	})
	streamstest.PutReports(t, nc, "good", 0, 5)
	kit.Eventually(t, "another node's reports", func() bool { return handled.Load() >= 5 })
	close(release)
	kit.Eventually(t, "all reports", func() bool { return handled.Load() >= 5+number })
}

// Large calls are refused before they take memory, or when their node has reached its limit.
func TestCallServer_BoundsBytesPerNode(t *testing.T) {
	hub := streamstest.Hub(t)
	reg := prometheus.NewRegistry()
	release := make(chan struct{})
	var served atomic.Int32
	hang := func(context.Context, string, []byte) (any, error) {
		served.Add(1)
		<-release
		return struct{}{}, nil
	}
	calls, err := call.NewServer(streamstest.Connect(t, hub), map[string]call.Handler{
		"hang": hang, subject.VerbWatch: hang,
		subject.VerbPing: func(context.Context, string, []byte) (any, error) { return struct{}{}, nil },
	}, metrics.New(reg), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, calls.Start)
	defer close(release)
	good := streamstest.Node(t, hub, "good")
	kit.Eventually(t, "the cloud answers", func() bool {
		return call.Call(t.Context(), good, "good", subject.VerbPing, struct{}{}, &struct{}{}) == nil
	})
	bad := streamstest.Connect(t, hub)
	refused := make(chan string, 100)
	inbox := subject.InboxPrefix("bad") + ".x"
	sub, err := bad.Subscribe(inbox, func(msg *nats.Msg) {
		var answer struct{ Error string }
		_ = json.Unmarshal(msg.Data, &answer) // then it is empty
		refused <- answer.Error
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Unsubscribe() }()
	answer := func() string {
		t.Helper()
		select {
		case answer := <-refused:
			return answer
		case <-time.After(60 * time.Second):
			t.Fatal("never refused")
			return ""
		}
	}
	ask := func(verb string, header nats.Header, data []byte) {
		t.Helper()
		if err := bad.PublishMsg(&nats.Msg{Subject: subject.CallSubject("bad", verb), Reply: inbox, Header: header, Data: data}); err != nil {
			t.Fatal(err)
		}
	}
	many := nats.Header{}
	for i := range 50_000 {
		many.Set(fmt.Sprint("X", i), "")
	}
	for name, send := range map[string]func(){
		"a call":         func() { ask("hang", nil, jsonOfMiB(6)) },
		"a long call":    func() { ask(subject.VerbWatch, nil, jsonOfMiB(1)) },
		"a call's head":  func() { ask("hang", many, nil) },
		"an unknown one": func() { ask("hung", nil, jsonOfMiB(6)) },
	} {
		send()
		if answer := answer(); !strings.HasPrefix(answer, "request of ") {
			t.Errorf("%s that is too large: %q", name, answer)
		}
	}
	if n := served.Load(); n != 0 || streamstest.SumCounters(t, reg, "frond_calls_total", "large") != 4 {
		t.Errorf("%d that are too large were served", n)
	}
	for range 10 {
		ask("hang", nil, jsonOfMiB(3))
	}
	for range 10 - 5 {
		if answer := answer(); !strings.Contains(answer, "wait already") {
			t.Errorf("the answer to one too many is %q", answer)
		}
	}
	kit.Eventually(t, "those of 16 MiB", func() bool { return served.Load() == 5 })
	if err := call.Call(t.Context(), good, "good", subject.VerbPing, struct{}{}, &struct{}{}); err != nil {
		t.Errorf("another node's call: %v", err)
	}
}
