package call_test

import (
	"context"
	"testing"

	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

func TestReportRequests_CarryTheObjectKey(t *testing.T) {
	hub := streamstest.Hub(t)
	nc := streamstest.Connect(t, hub)
	asked := make(chan wire.Key, 10)
	handle := func(_ context.Context, key wire.Key) error {
		asked <- key
		return nil
	}
	streamstest.StartPart(t, call.NewReportRequests("edge.1", streamstest.Connect(t, hub), handle, metrics.New(nil), zaptest.NewLogger(t)).Start)
	kit.Eventually(t, "the nudge is heard", func() bool {
		if err := nc.Publish("call.node.edge_1.report", []byte("garbage")); err != nil {
			t.Fatal(err)
		}
		if err := call.RequestReport(nc, "edge.1", streamstest.ConfigMapKey("a")); err != nil {
			t.Fatal(err)
		}
		return len(asked) > 0
	})
	if got := <-asked; got != streamstest.ConfigMapKey("a") {
		t.Errorf("asked for %v", got)
	}
}
