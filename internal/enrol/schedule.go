package enrol

import (
	"hash/fnv"
	"math/rand/v2"
	"time"
)

const (
	// A key is renewed when two thirds of its life are over, a twelfth of it earlier or later: the rest is for bad links.
	renewShare, jitterShare = 2.0 / 3, 1.0 / 12
	// spreadShare and spreadMax bound how long a gateway that finds itself due lets others go first: a clock that jumps for a
	// whole fleet must not bring all of it at once.
	spreadShare, spreadMax = 20, 10 * time.Minute
	// retryMin and retryMax bound the time between two tries of anything that failed.
	retryMin, retryMax = time.Second, 5 * time.Minute
)

// renewAt is when the key of a record is to be renewed. The jitter is the key's own, so a restart does not draw again.
func renewAt(r Record) time.Time {
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.Key)) // a hash never fails
	const steps = 1 << 16
	draw := float64(h.Sum32()%steps)/steps*2 - 1
	life := r.Expires.Sub(r.Issued)
	return r.Issued.Add(time.Duration(float64(life) * (renewShare + jitterShare*draw)))
}

// spreadLimit is how long who is due may wait at most.
func spreadLimit(r Record) time.Duration {
	return min(r.Expires.Sub(r.Issued)/spreadShare, spreadMax)
}

// retryBackoff counts failures in a row.
type retryBackoff struct{ failures int }

// nextWait is how long to leave it alone after one more failure.
func (p *retryBackoff) nextWait() time.Duration {
	d := retryMin << min(p.failures, 20) //nolint:mnd // beyond any limit
	p.failures++
	return addJitter(min(d, retryMax))
}

func (p *retryBackoff) reset() { p.failures = 0 }

// addJitter takes up to 40 % off.
func addJitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.6 + 0.4*rand.Float64()))
}
