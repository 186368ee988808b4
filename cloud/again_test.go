package cloud

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
)

func TestANodeIsAskedAgainForWhatWasGivenUp(t *testing.T) {
	asked := make(chan request, 10)
	a := newAgain(func(node string, key wire.Key) error {
		asked <- request{node, key}
		return nil
	}, zaptest.NewLogger(t))
	a.after = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return a.Start(ctx) })
	want := request{"edge-1", wire.Key{Resource: "pods", Namespace: "default", Name: "web"}}
	a.later(wire.Message{Node: want.node, Key: want.key})
	select {
	case got := <-asked:
		if got != want {
			t.Errorf("asked for %v, want %v", got, want)
		}
	case <-time.After(30 * time.Second):
		t.Error("never asked")
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
