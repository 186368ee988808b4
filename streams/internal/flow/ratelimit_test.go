package flow_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// A stolen key sends heartbeats without end, each with another instance id. The heartbeats of all other nodes still arrive.
func TestHeartbeats_FloodOfOneNodeDropsNoOther(t *testing.T) {
	hub := streamstest.Hub(t)
	reg := prometheus.NewRegistry()
	var mu sync.Mutex
	heard := map[string]map[uint64]bool{}
	beats, err := call.NewHeartbeats(streamstest.Connect(t, hub), func(_ context.Context, node string, beat wire.Heartbeat) {
		time.Sleep(time.Millisecond) //nolint:forbidigo // as slow as a cloudcore may be
		mu.Lock()
		defer mu.Unlock()
		if heard[node] == nil {
			heard[node] = map[uint64]bool{}
		}
		heard[node][beat.Sequence] = true
	}, metrics.New(reg), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	streamstest.StartPart(t, beats.Start)
	nc := streamstest.Connect(t, hub)
	publish := func(node string, sequence int) {
		t.Helper()
		body := fmt.Appendf(nil, `{"sequence":%d,"instance":"%s-%d"}`, sequence, node, sequence)
		if err := nc.Publish(subject.HeartbeatSubject(node), body); err != nil {
			t.Fatal(err)
		}
	}
	count := func(node string) int {
		mu.Lock()
		defer mu.Unlock()
		return len(heard[node])
	}
	kit.Eventually(t, "the listener", func() bool { publish("first", 1); return count("first") > 0 })
	const rounds, flood = 15, 5000 // as many as the queue of all nodes holds, and more
	for round := range rounds {
		for i := range flood {
			publish("bad", round*flood+i)
		}
		publish("good", round)
	}
	kit.Eventually(t, "all beats of the other", func() bool { return count("good") == rounds })
	if n := streamstest.SumCounters(t, reg, "frond_beats_dropped_total", ""); n < rounds*flood/2 {
		t.Errorf("%v dropped beats are counted, of %d", n, rounds*flood)
	}
}

func TestNodeLimiter_LimitsEachNodeSeparately(t *testing.T) {
	b := flow.NewNodeLimiter()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	passed, told := 0, 0
	send := func(number int) {
		for range number {
			pass, first := b.Allow("bad", at)
			if pass {
				passed++
			}
			if first {
				told++
			}
		}
	}
	send(100)
	if passed != 20 || told != 1 {
		t.Errorf("%d of 100 passed, told of it %d times", passed, told)
	}
	if pass, _ := b.Allow("good", at); !pass {
		t.Error("another node is stopped, too")
	}
	at = at.Add(time.Second)
	send(100)
	if passed != 25 || told != 1 {
		t.Errorf("%d passed a second later, told of it %d times", passed, told)
	}
	at = at.Add(time.Minute)
	if b.Allow("good", at); b.NodeCount() != 1 {
		t.Errorf("%d nodes are known of which one was heard lately", b.NodeCount())
	}
	for second := range 100 {
		if pass, _ := b.Allow("beating", at.Add(time.Duration(second)*time.Second)); !pass {
			t.Fatalf("a beat each second is stopped after %d s", second)
		}
	}
}
