package flow_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/frond-edge/frond/streams/internal/flow"
)

// A node with many reports is not a node that floods: a deferred message counts until it is handled, and its redelivery does not exceed
// the limit.
func TestOverflowTracker_DeferredMessagesMayComeAgain(t *testing.T) {
	f := flow.NewOverflowTracker(3)
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	note := func(subject string) bool {
		over, _ := f.DeferMessage("a", subject, now)
		return over
	}
	for i := range 3 {
		if note(fmt.Sprint(i)) {
			t.Fatalf("%d is one too many", i)
		}
	}
	if over, first := f.DeferMessage("a", "3", now); !over || !first {
		t.Error("the fourth is none too many, or not the first of them")
	}
	if over, first := f.DeferMessage("a", "4", now); !over || first {
		t.Error("the fifth is none too many, or the first of them")
	}
	if over, _ := f.DeferMessage("b", "3", now); over {
		t.Error("another node's is one too many")
	}
	now = now.Add(time.Second)
	if note("0") {
		t.Error("what was put off before is dropped when it comes again")
	}
	f.AdmitMessage("a", "0")
	f.AdmitMessage("c", "0")
	if note("3") {
		t.Error("no room after one was taken in hand")
	}
	for range 6 { // 0 is admitted, 1 and 2 go to another cloudcore, 3 is redelivered each second
		now = now.Add(time.Second)
		note("3")
	}
	if note("5") || note("6") || !note("7") {
		t.Error("what did not come again takes room for ever")
	}
}
