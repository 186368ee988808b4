package redial_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/leaf/redial"
)

func newBackoff(jitter float64) *redial.Backoff {
	return &redial.Backoff{Min: 2 * time.Second, Max: 15 * time.Second, StalledMax: time.Minute, Jitter: func() float64 { return jitter }}
}

// pausesOf runs a Backoff through outages. Positive steps are outages, negative ones links; it returns the pauses between the dials of each
// outage.
func pausesOf(jitter float64, steps ...time.Duration) [][]time.Duration {
	b, now := newBackoff(jitter), time.Unix(0, 0)
	var all [][]time.Duration
	for _, d := range steps {
		if d < 0 {
			b.EndOutage(now)
			now = now.Add(-d)
			continue
		}
		b.StartOutage(now)
		var pauses []time.Duration
		pauses, now = dialUntil(b, now, now.Add(d), false)
		all = append(all, pauses)
	}
	return all
}

// dialUntil returns the pauses between the dials from now to end, and end. stalled is what becomes of each dial.
func dialUntil(b *redial.Backoff, now, end time.Time, stalled bool) ([]time.Duration, time.Time) {
	var pauses []time.Duration
	for last := now; now.Before(end); now = now.Add(100 * time.Millisecond) {
		if b.Due(now) {
			pauses = append(pauses, now.Sub(last))
			last = now
			b.ScheduleNext(now, stalled)
		}
	}
	return pauses, now
}

func TestBackoff_Pauses(t *testing.T) {
	all := pausesOf(0, 10*time.Minute)
	if n := len(all[0]); n > 85 { // 9 s each with the least jitter, and some before
		t.Errorf("%d dials in 10 minutes, want at most 85", n)
	}
	if first := all[0][0]; first > 2*time.Second {
		t.Errorf("first dial after %v, want at most 2 s", first)
	}
	for _, p := range all[0] {
		if p > 15*time.Second || p < time.Second {
			t.Errorf("pause of %v, want 1 to 15 s", p)
		}
	}
	// A link of a second does not shorten the pauses of a long outage much; one of a minute does.
	all = pausesOf(0, 2*time.Minute, -time.Second, 20*time.Second, -time.Minute, 20*time.Second)
	if p := all[1][0]; p < 8*time.Second {
		t.Errorf("after a short link the first dial came after %v, want the pause of a long outage", p)
	}
	if p := all[2][0]; p > 2*time.Second {
		t.Errorf("after a stable link the first dial came after %v, want at most 2 s", p)
	}
	// A hub that drops the node after a moment, again and again, is dialled less and less; one whose servers die one after the other is
	// dialled as soon each time.
	flapping, deaths := []time.Duration{}, []time.Duration{}
	for range 40 {
		flapping = append(flapping, 20*time.Second, -300*time.Millisecond)
		deaths = append(deaths, 3*time.Second, -6*time.Second)
	}
	all = pausesOf(0, flapping...)
	if p := all[39][0]; p < 8*time.Second {
		t.Errorf("a hub that drops us was dialled %v after it had", p)
	}
	all = pausesOf(0.9, deaths...)
	if p := all[39][0]; p > 2*time.Second {
		t.Errorf("after 40 deaths of servers the first dial came after %v, want at most 2 s", p)
	}
	if a, b := pausesOf(0, time.Minute), pausesOf(0.9, time.Minute); cmp.Equal(a, b) {
		t.Error("jitter changes nothing")
	}
}

func TestDial_Stalled(t *testing.T) {
	reached := time.Unix(100, 0)
	at := func(seconds float64) time.Time { return reached.Add(time.Duration(seconds * float64(time.Second))) }
	for name, tt := range map[string]struct {
		dial redial.Dial
		now  time.Time
		want bool
	}{
		"not reached":       {redial.Dial{}, at(60), false},
		"just reached":      {redial.Dial{ReachedAt: reached}, at(3), false},
		"no answer":         {redial.Dial{ReachedAt: reached}, at(5), true},
		"closed at once":    {redial.Dial{ReachedAt: reached, ClosedAt: at(0.1)}, at(60), false},
		"closed late":       {redial.Dial{ReachedAt: reached, ClosedAt: at(5)}, at(60), true},
		"refused, but late": {redial.Dial{ReachedAt: reached, ClosedAt: at(5), Refused: true}, at(60), false},
	} {
		if got := tt.dial.Stalled(tt.now); got != tt.want {
			t.Errorf("%s: stalled %t", name, got)
		}
	}
}

// An overloaded hub is dialled half as often each time, so that what is offered falls below what it can do; when it cannot be reached any
// more, it is dialled as often as any other.
func TestBackoff_StalledHub(t *testing.T) {
	b, now := newBackoff(0.99), time.Unix(0, 0)
	b.StartOutage(now)
	pauses, now := dialUntil(b, now, now.Add(10*time.Minute), true)
	if len(pauses) > 16 {
		t.Errorf("%d dials in 10 minutes: %v", len(pauses), pauses)
	}
	for i := range pauses[1:] {
		if before, p := pauses[i], pauses[i+1]; p < before || p > time.Minute {
			t.Errorf("a pause of %v after one of %v", p, before)
		}
	}
	pauses, _ = dialUntil(b, now, now.Add(5*time.Minute), false)
	if p := pauses[len(pauses)-1]; p > 15*time.Second {
		t.Errorf("a pause of %v while the hub cannot be reached", p)
	}
}
