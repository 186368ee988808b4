package enrol

import (
	"hash/fnv"
	"math/rand/v2"
	"time"
)

const (
	// A key is renewed when two thirds of its life are over, a twelfth of it earlier or later: the rest is for bad links.
	renewShare, jitterShare = 2.0 / 3, 1.0 / 12
	// spreadShare and spreadMost bound how long a gateway that finds itself due lets others go first: a clock that jumps for a
	// whole fleet must not bring all of it at once.
	spreadShare, spreadMost = 20, 10 * time.Minute
	// retryFirst and retryMost bound the time between two tries of anything that failed.
	retryFirst, retryMost = time.Second, 5 * time.Minute
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

// spread is how long who is due may wait at most.
func spread(r Record) time.Duration {
	return min(r.Expires.Sub(r.Issued)/spreadShare, spreadMost)
}

// patience counts failures in a row.
type patience struct{ failed int }

// wait is how long to leave it alone after one more failure.
func (p *patience) wait() time.Duration {
	d := retryFirst << min(p.failed, 20) //nolint:mnd // beyond any limit
	p.failed++
	return jittered(min(d, retryMost))
}

func (p *patience) reset() { p.failed = 0 }

// jittered takes up to 40 % off.
func jittered(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.6 + 0.4*rand.Float64()))
}
