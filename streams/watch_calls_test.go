package streams_test

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// A node has at most the permitted number of waiting watches; its other calls, and those of other nodes, are answered meanwhile.
func TestCallServer_WaitingWatchesDelayNoOther(t *testing.T) {
	hub := streamstest.Hub(t)
	release, waiting := make(chan struct{}), make(chan string, 100)
	calls, err := streams.NewCallServer(streamstest.Connect(t, hub), map[string]streams.CallHandler{
		streams.VerbWatch: func(ctx context.Context, node string, _ []byte) (any, error) {
			waiting <- node
			select {
			case <-release:
			case <-ctx.Done():
			}
			return struct{}{}, nil
		},
		streams.VerbPing: func(context.Context, string, []byte) (any, error) { return struct{}{}, nil },
	}, streams.NewMetrics(prometheus.NewRegistry()), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	startPart(t, calls.Start)
	const most = 64
	a, b := streamstest.Node(t, hub, "a"), streamstest.Node(t, hub, "b")
	streamstest.Eventually(t, "the cloud answers both", func() bool {
		return streams.Call(t.Context(), a, "a", streams.VerbPing, struct{}{}, &struct{}{}) == nil &&
			streams.Call(t.Context(), b, "b", streams.VerbPing, struct{}{}, &struct{}{}) == nil
	})
	var g errgroup.Group
	for range most {
		g.Go(func() error { return streams.Call(t.Context(), a, "a", streams.VerbWatch, struct{}{}, &struct{}{}) })
	}
	for range most {
		<-waiting
	}
	var refused struct{ Error string }
	if err := streams.Call(t.Context(), a, "a", streams.VerbWatch, struct{}{}, &refused); err != nil || !strings.Contains(refused.Error, "wait already") {
		t.Errorf("one more: %+v, %v", refused, err)
	}
	var answer struct{ Error string }
	if err := streams.Call(t.Context(), a, "a", streams.VerbPing, struct{}{}, &answer); err != nil || answer.Error != "" {
		t.Errorf("another call of the node: %+v, %v", answer, err)
	}
	g.Go(func() error { return streams.Call(t.Context(), b, "b", streams.VerbWatch, struct{}{}, &struct{}{}) })
	if node := <-waiting; node != "b" {
		t.Errorf("a watch of %s waits", node)
	}
	close(release)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	streamstest.Eventually(t, "there is room again", func() bool {
		var again struct{ Error string }
		return streams.Call(t.Context(), a, "a", streams.VerbWatch, struct{}{}, &again) == nil && again.Error == ""
	})
}
