package nodes_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/frond-edge/frond/controllers/nodes"
)

const heartbeat = 10 * time.Second

func TestLeaseSchedule_Period(t *testing.T) {
	for _, tt := range []struct {
		budget  nodes.LeaseBudget
		nodes   int
		period  time.Duration
		seconds int32
	}{
		{nodes.LeaseBudget{PerSecond: 100, LongestPeriod: 20 * time.Second}, 0, 10 * time.Second, 40},
		{nodes.LeaseBudget{PerSecond: 100, LongestPeriod: 20 * time.Second}, 1000, 10 * time.Second, 40},
		{nodes.LeaseBudget{PerSecond: 100, LongestPeriod: 20 * time.Second}, 1500, 15 * time.Second, 45},
		{nodes.LeaseBudget{PerSecond: 100, LongestPeriod: 20 * time.Second}, 2000, 20 * time.Second, 50},
		{nodes.LeaseBudget{PerSecond: 100, LongestPeriod: 20 * time.Second}, 33_000, 20 * time.Second, 50},
		{nodes.LeaseBudget{PerSecond: 100, LongestPeriod: 5 * time.Minute}, 33_000, 5 * time.Minute, 330},
		{nodes.LeaseBudget{PerSecond: 300, LongestPeriod: 5 * time.Minute}, 33_000, 110 * time.Second, 140},
		{nodes.LeaseBudget{PerSecond: 1, LongestPeriod: 10 * time.Second}, 1000, 10 * time.Second, 40},
		{nodes.LeaseBudget{PerSecond: 1_000_000, LongestPeriod: 20 * time.Second}, 100_000, 10 * time.Second, 40},
		// A budget that nobody has filled in.
		{nodes.LeaseBudget{}, 5000, 10 * time.Second, 40},
	} {
		s := nodes.NewLeaseSchedule(tt.budget)
		if period := s.Period(tt.nodes); period != tt.period || s.Seconds(period) != tt.seconds {
			t.Errorf("%+v with %d nodes: %v, valid for %d s, want %v, %d s", tt.budget, tt.nodes, period, s.Seconds(period), tt.period, tt.seconds)
		}
	}
}

// fleet simulates nodes of one owner for a time and returns how many Leases are written in each second, and the oldest age of a Lease.
// Each node sends a heartbeat each 10 s from a random moment on, early or late by up to jitter.
func fleet(s nodes.LeaseSchedule, count, seconds int, jitter time.Duration, random *rand.Rand) (writes []int, oldest time.Duration) {
	began := time.Unix(1e9, 0)
	period, end := s.Period(count), began.Add(time.Duration(seconds)*time.Second)
	writes = make([]int, seconds)
	for range count {
		var due, written time.Time
		first := began.Add(time.Duration(random.Int64N(int64(heartbeat))))
		for beat := first; ; beat = beat.Add(heartbeat) {
			at := beat.Add(time.Duration((random.Float64() - 0.5) * 2 * float64(jitter)))
			if !at.Before(end) {
				break
			}
			if at.Before(began) || !s.IsDue(due, at) {
				continue
			}
			if !written.IsZero() {
				oldest = max(oldest, at.Sub(written))
			}
			due, written = s.NextDue(due, at, period, random.Float64()), at
			writes[int(at.Sub(began)/time.Second)]++
		}
	}
	return writes, oldest
}

// TestLeaseSchedule_KeepsItsPromises: whatever the period, no Lease gets older than it and a heartbeat, the renewals after the first
// ones come at the rate that was chosen, and they are spread, though all nodes were taken over within one heartbeat.
func TestLeaseSchedule_KeepsItsPromises(t *testing.T) {
	const count, seconds, perSecond = 6000, 1200, 100
	for longest, jitter := range map[time.Duration]time.Duration{
		10 * time.Second: time.Second, 20 * time.Second: 0, 25 * time.Second: time.Second, 30 * time.Second: time.Second,
		45 * time.Second: 4 * time.Second, 60 * time.Second: time.Second, 5 * time.Minute: time.Second,
	} {
		s := nodes.NewLeaseSchedule(nodes.LeaseBudget{PerSecond: perSecond, LongestPeriod: longest})
		period := s.Period(count)
		writes, oldest := fleet(s, count, seconds, jitter, rand.New(rand.NewPCG(1, 2)))
		if limit := period + heartbeat + 2*jitter; oldest > limit {
			t.Errorf("period %v: a Lease of %v, want at most %v", period, oldest, limit)
		}
		settled, total, most := writes[2*int(heartbeat/time.Second):], 0, 0
		for _, n := range settled {
			total += n
			most = max(most, n)
		}
		want := float64(count) / period.Seconds()
		if rate := float64(total) / float64(len(settled)); rate < want*0.97 || rate > want*1.03 {
			t.Errorf("period %v: %.1f writes a second, want %.1f", period, rate, want)
		}
		if float64(most) > 1.5*want { // the Poisson noise of 100 a second is 10
			t.Errorf("period %v: %d writes in one second, want about %.0f", period, most, want)
		}
	}
}

// TestLeaseSchedule_RenewsWithEachHeartbeat: the shortest period uses every heartbeat, however late or early each of them is.
func TestLeaseSchedule_RenewsWithEachHeartbeat(t *testing.T) {
	s := nodes.NewLeaseSchedule(nodes.LeaseBudget{PerSecond: 100, LongestPeriod: 20 * time.Second})
	random := rand.New(rand.NewPCG(3, 4))
	began := time.Unix(1e9, 0)
	var due time.Time
	for n := range 1000 {
		at := began.Add(time.Duration(n)*heartbeat + time.Duration(random.Int64N(int64(time.Second))))
		if !s.IsDue(due, at) {
			t.Fatalf("heartbeat %d at %v renews nothing: due at %v", n, at.Sub(began), due.Sub(began))
		}
		due = s.NextDue(due, at, s.Period(1), 0.5)
	}
}

func TestLeaseSchedule_NextDue(t *testing.T) {
	s := nodes.NewLeaseSchedule(nodes.LeaseBudget{PerSecond: 1, LongestPeriod: time.Minute})
	now, period := time.Unix(1e9, 0), 40*time.Second
	for name, tt := range map[string]struct {
		due   time.Time
		share float64
		want  time.Duration // from now
	}{
		"early":                         {now.Add(4 * time.Second), 0.5, 44 * time.Second},
		"late":                          {now.Add(-9 * time.Second), 0.5, 31 * time.Second},
		"first, the soonest":            {time.Time{}, 0, 5 * time.Second},
		"first, the latest":             {time.Time{}, 1, 45 * time.Second},
		"heartbeats did not come":       {now.Add(-11 * time.Second), 0.25, 15 * time.Second},
		"after a day without heartbeat": {now.Add(-24 * time.Hour), 0.75, 35 * time.Second},
	} {
		if got := s.NextDue(tt.due, now, period, tt.share).Sub(now); got != tt.want {
			t.Errorf("%s: due in %v, want %v", name, got, tt.want)
		}
	}
}
