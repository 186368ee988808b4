package call_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestReportRequests_CarryTheObjectKey(t *testing.T) {
	hub := streamstest.Hub(t)
	nc, m := streamstest.Connect(t, hub), metrics.New(nil)
	asked, resynced := make(chan wire.Key, 10), make(chan struct{}, 10)
	handle := func(_ context.Context, key wire.Key) error {
		asked <- key
		return nil
	}
	requests := call.NewReportRequests(handle, m, zaptest.NewLogger(t))
	streamstest.StartPart(t, requests.Start)
	handlers := map[string]func([]byte){call.VerbReport: requests.Enqueue, call.VerbResync: func([]byte) { resynced <- struct{}{} }}
	streamstest.StartPart(t, call.NewCommandListener("edge.1", streamstest.Connect(t, hub), handlers, m, zaptest.NewLogger(t)).Start)
	refused := func() float64 { return testutil.ToFloat64(m.DeadLetters.WithLabelValues("call")) }
	kit.Eventually(t, "the commands are heard", func() bool {
		// No cloudcore has sent the first two, and the third is of no version that this one knows.
		kit.Must(t, nc.Publish("call.node.edge_1.report", []byte(streamstest.ConfigMapKey("forged").String())))
		kit.Must(t, nc.Publish("call.node.edge_1.resync", nil))
		kit.Must(t, call.SendCommand(nc, "edge.1", "later", nil))
		kit.Must(t, call.SendCommand(nc, "edge.1", call.VerbReport, []byte("garbage")))
		kit.Must(t, call.RequestReport(nc, "edge.1", streamstest.ConfigMapKey("a")))
		return len(asked) > 0 && refused() >= 3
	})
	if got := <-asked; got != streamstest.ConfigMapKey("a") {
		t.Errorf("asked for %v", got)
	}
	if len(resynced) > 0 {
		t.Error("a command that no cloudcore has sent was executed")
	}
}

// All commands come over one subscription: each costs the hub memory on every server.
func TestCommandListener_HasOneSubscription(t *testing.T) {
	hub := streamstest.Hub(t)
	nc := streamstest.Connect(t, hub)
	handlers := map[string]func([]byte){call.VerbWho: nil, call.VerbFence: nil, call.VerbDied: nil}
	streamstest.StartPart(t, call.NewCommandListener("edge.1", nc, handlers, metrics.New(nil), zaptest.NewLogger(t)).Start)
	kit.Eventually(t, "the subscription", func() bool { return nc.NumSubscriptions() > 0 })
	if got := nc.NumSubscriptions(); got != 1 {
		t.Errorf("%d subscriptions", got)
	}
}
