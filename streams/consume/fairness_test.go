package consume_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// A node with more reports than the whole window, each of which hangs, delays no other node.
func TestReportConsumer_HangingReportsDelayNoOtherNode(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.Hub(t))
	var hanging, good atomic.Int32
	handle := func(ctx context.Context, m wire.Message) error {
		if m.Node == "bad" {
			hanging.Add(1)
			defer hanging.Add(-1)
			<-ctx.Done()
			return ctx.Err()
		}
		good.Add(1)
		return nil
	}
	streamstest.PutReports(t, nc, "bad", 0, 1000)
	streamstest.StartReports(t, nc, handle, nil)
	kit.Eventually(t, "the bad node's reports are in hand", func() bool { return hanging.Load() > 0 })
	streamstest.PutReports(t, nc, "good", 0, 50)
	kit.Eventually(t, "the good node's reports", func() bool { return good.Load() >= 50 })
	if n := hanging.Load(); n > 4 {
		t.Errorf("one node has %d workers", n)
	}
}

// A node that has filled the stream with reports delays the other nodes only briefly, though their reports are behind.
func TestReportConsumer_FloodOfOneNodeIsDropped(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.Hub(t))
	var good atomic.Int32
	handle := func(_ context.Context, m wire.Message) error {
		if m.Node == "bad" {
			time.Sleep(50 * time.Millisecond) //nolint:forbidigo // as slow as an API may be
			return nil
		}
		good.Add(1)
		return nil
	}
	streamstest.PutReports(t, nc, "bad", 0, 20_000)
	streamstest.PutReports(t, nc, "good", 0, 50)
	var asked atomic.Int32
	reg, _ := streamstest.StartReports(t, nc, handle, func(m wire.Message) {
		if m.Node == "bad" && m.Key.Name != "" {
			asked.Add(1)
		}
	})
	began := time.Now()
	kit.Eventually(t, "the good node's reports", func() bool { return good.Load() >= 50 })
	t.Logf("after %s, %v reports were dropped", time.Since(began).Round(time.Millisecond), streamstest.SumCounters(t, reg, "frond_reports_total", "flooded"))
	if streamstest.SumCounters(t, reg, "frond_reports_total", "flooded") < 10_000 {
		t.Error("what is dropped is not counted")
	}
	if asked.Load() < 10_000 {
		t.Errorf("the node is asked for %d objects later", asked.Load())
	}
}

// Refused reports do not stay without limit in the window that all nodes share: too many of one node, and those refused for too long,
// become dead letters, and the node is asked again later.
func TestReportConsumer_RefusedReportsAreGivenUp(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.Hub(t))
	var good, told atomic.Int32
	handle := func(_ context.Context, m wire.Message) error {
		if m.Node == "bad" {
			return fmt.Errorf("403: %w", wire.ErrRefused)
		}
		good.Add(1)
		return nil
	}
	streamstest.PutReports(t, nc, "bad", 0, 200)
	reg, _ := streamstest.StartReports(t, nc, handle, func(m wire.Message) {
		if m.Node == "bad" && strings.HasPrefix(m.Key.Name, "o") {
			told.Add(1)
		}
	})
	streamstest.PutReports(t, nc, "good", 0, 20)
	kit.Eventually(t, "the good node's reports", func() bool { return good.Load() >= 20 })
	kit.Eventually(t, "all but 32 are given up", func() bool { return told.Load() >= 168 })
	if n := streamstest.CountDeadLetters(t, reg, "report"); n < 168 {
		t.Errorf("%v dead letters", n)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, "only those that are tried again wait", func() bool {
		stream, err := js.Stream(t.Context(), subject.ReportStream)
		return err == nil && stream.CachedInfo().State.Msgs == 32
	})
}

func TestRetryBudget_LimitsAgeAndNumber(t *testing.T) {
	r := flow.NewRetryBudget(40)
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	note := func(node, subj string, after time.Duration) bool {
		return r.RecordRefusal(node, subj, at.Add(after)) == nil
	}
	if !note("a", "x", 0) || !note("a", "x", 9*time.Minute) || note("a", "x", 10*time.Minute) {
		t.Error("an object is to be tried for ten minutes")
	}
	if !note("a", "x", 11*time.Minute) {
		t.Error("what was given up and comes again has another ten minutes")
	}
	for i := range 31 {
		if !note("a", fmt.Sprint("y", i), 12*time.Minute) {
			t.Fatalf("only %d objects of a node", i+1)
		}
	}
	if note("a", "z", 12*time.Minute) {
		t.Error("more than 32 objects of a node")
	}
	r.Reset("a", "y3")
	if !note("a", "z", 12*time.Minute) {
		t.Error("no room after one was taken")
	}
	for i := range 8 {
		if !note("b", fmt.Sprint("y", i), 12*time.Minute) {
			t.Fatalf("only %d objects of all", 32+i)
		}
	}
	if note("b", "z", 12*time.Minute) {
		t.Error("more than 40 objects of all nodes")
	}
	if !note("b", "z", 40*time.Minute) {
		t.Error("what another cloudcore settled takes room for ever")
	}
}

// shortenAckWait shortens the hub's wait for an ack.
func shortenAckWait(t *testing.T, js jetstream.JetStream, unacked time.Duration) jetstream.Consumer {
	t.Helper()
	consumer, err := topology.FindCloudConsumer(t.Context(), js, subject.ReportStream)
	if err != nil {
		t.Fatal(err)
	}
	cfg := consumer.CachedInfo().Config
	cfg.AckWait = unacked
	if _, err := js.UpdateConsumer(t.Context(), subject.ReportStream, cfg); err != nil {
		t.Fatal(err)
	}
	return consumer
}

// A cloudcore that works on a report for long keeps it; one that is gone loses it within seconds.
func TestReportConsumer_KeepsWorkAliveAndTakesOverFromDead(t *testing.T) {
	const unacked = 6 * time.Second // shortened from 10 s
	hub := streamstest.Hub(t)
	nc := streamstest.Connect(t, hub)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	consumer := shortenAckWait(t, js, unacked)
	deliveries := func() uint64 {
		t.Helper()
		info, err := consumer.Info(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return info.Delivered.Consumer
	}
	done := make(chan string, 10)
	_, stop := streamstest.StartReports(t, nc, func(ctx context.Context, m wire.Message) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(unacked + 2*time.Second):
			done <- m.Key.Name
			return nil
		}
	}, nil)
	kept := false
	for try := 0; try < 3 && !kept; try++ { // a busy machine may miss a progress ack
		before := deliveries()
		streamstest.PutReports(t, nc, "edge.1", try, 1)
		for name := ""; name != fmt.Sprint("o", try); name = <-done { // not the previous one again
		}
		kept = deliveries() == before+1
	}
	if !kept {
		t.Error("a report that was worked on was given to another")
	}
	stop()

	lost := streamstest.Connect(t, hub)
	began := make(chan struct{})
	streamstest.StartReports(t, lost, func(ctx context.Context, _ wire.Message) error {
		close(began)
		<-ctx.Done()
		return errors.New("dead")
	}, nil)
	streamstest.PutReports(t, nc, "edge.1", 10, 1)
	<-began
	lost.Close()
	at := time.Now()
	taken := make(chan struct{}, 10)
	streamstest.StartReports(t, nc, func(context.Context, wire.Message) error {
		taken <- struct{}{}
		return nil
	}, nil)
	select {
	case <-taken:
		t.Logf("taken over after %s", time.Since(at).Round(100*time.Millisecond))
	case <-time.After(60 * time.Second):
		t.Fatal("never handled by the other")
	}
}
