package deliver_test

import (
	"context"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// A node has at most the permitted number of waiting watches; its other calls, and those of other nodes, are answered meanwhile.
func TestCallServer_WaitingWatchesDelayNoOther(t *testing.T) {
	hub := streamstest.Hub(t)
	release, waiting := make(chan struct{}), make(chan string, 100)
	calls, err := call.NewServer(streamstest.Connect(t, hub), map[string]call.Handler{
		subject.VerbWatch: func(ctx context.Context, node string, _ []byte) (any, error) {
			waiting <- node
			select {
			case <-release:
			case <-ctx.Done():
			}
			return struct{}{}, nil
		},
		subject.VerbPing: func(context.Context, string, []byte) (any, error) { return struct{}{}, nil },
	}, metrics.New(prometheus.NewRegistry()), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, calls.Start)
	const most = 64
	a, b := streamstest.Node(t, hub, "a"), streamstest.Node(t, hub, "b")
	kit.Eventually(t, "the cloud answers both", func() bool {
		return call.Call(t.Context(), a, "a", subject.VerbPing, struct{}{}, &struct{}{}) == nil &&
			call.Call(t.Context(), b, "b", subject.VerbPing, struct{}{}, &struct{}{}) == nil
	})
	var g errgroup.Group
	for range most {
		g.Go(func() error { return call.Call(t.Context(), a, "a", subject.VerbWatch, struct{}{}, &struct{}{}) })
	}
	for range most {
		<-waiting
	}
	var refused struct{ Error string }
	if err := call.Call(t.Context(), a, "a", subject.VerbWatch, struct{}{}, &refused); err != nil || !strings.Contains(refused.Error, "wait already") {
		t.Errorf("one more: %+v, %v", refused, err)
	}
	var answer struct{ Error string }
	if err := call.Call(t.Context(), a, "a", subject.VerbPing, struct{}{}, &answer); err != nil || answer.Error != "" {
		t.Errorf("another call of the node: %+v, %v", answer, err)
	}
	g.Go(func() error { return call.Call(t.Context(), b, "b", subject.VerbWatch, struct{}{}, &struct{}{}) })
	if node := <-waiting; node != "b" {
		t.Errorf("a watch of %s waits", node)
	}
	close(release)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	kit.Eventually(t, "there is room again", func() bool {
		var again struct{ Error string }
		return call.Call(t.Context(), a, "a", subject.VerbWatch, struct{}{}, &again) == nil && again.Error == ""
	})
}
