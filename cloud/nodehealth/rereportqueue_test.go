package nodehealth

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/test/kit"
)

func TestRereportQueue_AsksForDroppedReport(t *testing.T) {
	asked := make(chan rereportRequest, 10)
	a := NewRereportQueue(func(node string, key wire.Key) error {
		asked <- rereportRequest{node, key}
		return nil
	}, nil, zaptest.NewLogger(t))
	a.delay = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return a.Start(ctx) })
	want := rereportRequest{"edge-1", wire.Key{Resource: "pods", Namespace: "default", Name: "web"}}
	a.Schedule(wire.Message{Node: want.node, Key: want.key})
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

// In an overload each report is given up. The memory of them stays small, and the node, which may be honest, is asked
// for everything once.
func TestRereportQueue_BoundsFlood(t *testing.T) {
	asked := make(chan rereportRequest, 3*rereportMax)
	a := NewRereportQueue(func(node string, key wire.Key) error {
		asked <- rereportRequest{node, key}
		return nil
	}, func(node string) error {
		asked <- rereportRequest{node: node}
		return nil
	}, zaptest.NewLogger(t))
	a.delay = time.Second
	object := func(i int) wire.Key {
		return wire.Key{Resource: "pods", Namespace: "default", Name: fmt.Sprint(i)}
	}
	remembered := func(node string) (number, all int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, of := range a.pending {
			all += len(of)
		}
		if all != a.total {
			t.Errorf("%d are remembered, and %d counted", all, a.total)
		}
		return len(a.pending[node]), all
	}
	for range 2 {
		for i := range 10_000 {
			a.Schedule(wire.Message{Node: "bad", Key: object(i)})
		}
	}
	if n, _ := remembered("bad"); n != rereportMaxPerNode+1 {
		t.Errorf("%d are remembered of one node", n)
	}
	const more = 100 // nodes
	for node := range more {
		for i := range rereportMaxPerNode {
			a.Schedule(wire.Message{Node: fmt.Sprint("bad-", node), Key: object(i)})
		}
	}
	a.Schedule(wire.Message{Node: "good", Key: object(0)})
	if _, n := remembered(""); n > rereportMax+more+2 {
		t.Errorf("%d are remembered of all nodes", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return a.Start(ctx) })
	times := map[rereportRequest]int{}
	for deadline := time.After(60 * time.Second); times[rereportRequest{node: "bad"}] == 0 || times[rereportRequest{node: "good"}] == 0; {
		select {
		case r := <-asked:
			times[r]++
		case <-deadline:
			t.Fatal("never asked for everything")
		}
	}
	if n := times[rereportRequest{node: "bad"}]; n != 1 {
		t.Errorf("asked %d times for everything", n)
	}
	kit.Eventually(t, "nothing is remembered any more", func() bool {
		_, waiting := remembered("")
		return waiting == 0
	})
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}
