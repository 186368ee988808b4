package measure_test

import (
	"testing"
	"time"

	"github.com/frond-edge/frond/loadtest/measure"
)

func TestHistogram_CountsFromWhenAnOperationWasDue(t *testing.T) {
	began := time.Unix(1000, 0)
	h := measure.NewHistogram(began)
	for i := range 100 { // all end together after a stall of a second, though one was due each 10 ms
		h.Record(began.Add(time.Duration(i)*10*time.Millisecond), began.Add(time.Second))
	}
	s := h.Summary()
	if s.Count != 100 || s.Max < 990 || s.Max > 1010 || s.P50 < 480 || s.P50 > 520 || s.P99 < 970 {
		t.Errorf("%+v", s)
	}
	if len(s.Worst) != 2 || s.Worst[0] != 0 || s.Worst[1] != 1000 {
		t.Errorf("by second: %v", s.Worst)
	}
	h.Record(began.Add(time.Minute), began) // clocks
	if s := h.Summary(); s.Count != 101 || len(s.Worst) != 2 {
		t.Errorf("%+v", s)
	}
}

func TestTracker_NewerStateEndsOlderOperations(t *testing.T) {
	tr, h, now := measure.NewTracker(), measure.NewHistogram(time.Unix(0, 0)), time.Unix(10, 0)
	for i := range 3 {
		tr.Begin("a", int64(i), now, h)
	}
	tr.Begin("b", 7, now, h)
	tr.Begin("b", 8, now, h)
	tr.End("a", 1, now.Add(time.Second))
	tr.End("b", 6, now.Add(time.Second))
	tr.End("unknown", 6, now)
	tr.Drop("b", 8)
	if n := tr.Outstanding(); n != 2 {
		t.Errorf("%d outstanding, want 2", n)
	}
	if s := h.Summary(); s.Count != 2 {
		t.Errorf("%d recorded, want 2", s.Count)
	}
	if n := tr.Abandon(); n != 2 || tr.Outstanding() != 0 {
		t.Errorf("%d abandoned", n)
	}
}
