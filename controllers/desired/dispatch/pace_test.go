package dispatch_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/frond-edge/frond/api/wire"
)

// TestQueue_PacesAnObjectThatFlaps: the first change goes at once, the later ones once a second, and the last one is not lost.
func TestQueue_PacesAnObjectThatFlaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := start(t, 1)
		r.queue.Follow()
		key := keyOf("slice")
		if !r.queue.Pace(key) {
			t.Fatal("the first change waits")
		}
		if !r.queue.Pace(keyOf("other")) {
			t.Error("an object waits for another one")
		}
		for range 249 { // for 2.49 s
			<-time.After(10 * time.Millisecond)
			if r.queue.Pace(key) {
				t.Fatal("a later change does not wait")
			}
		}
		if got := drain(r.spread); got != 2 {
			t.Errorf("%d changes within 2.49 s, want one for each second", got)
		}
		<-time.After(time.Second)
		if got := drain(r.spread); got != 1 {
			t.Errorf("%d changes after the last, want 1", got)
		}
		<-time.After(5 * time.Second)
		if got := drain(r.spread); got != 0 {
			t.Errorf("%d changes of an object that rests", got)
		}
		if !r.queue.Pace(key) {
			t.Error("a change after a rest waits")
		}
		<-time.After(2 * time.Second)
	})
}

// TestQueue_PacesNothingAtTheStart: before Follow events bring the objects that exist, each once.
func TestQueue_PacesNothingAtTheStart(t *testing.T) {
	r, _ := start(t, 1)
	for range 3 {
		if !r.queue.Pace(keyOf("slice")) {
			t.Fatal("an event at the start waits")
		}
	}
}

// drain counts what is in a channel now.
func drain(from <-chan wire.Key) (count int) {
	synctest.Wait()
	for len(from) > 0 {
		<-from
		count++
	}
	return count
}
