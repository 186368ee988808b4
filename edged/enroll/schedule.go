package enroll

import (
	"hash/fnv"
	"math/rand/v2"
	"time"

	"github.com/frond-edge/frond/edged/identitydir"
)

const (
	// A key is renewed when two thirds of its life are over, a twelfth of it earlier or later: the rest is for bad links.
	renewShare, jitterShare = 2.0 / 3, 1.0 / 12
	// spreadShare and spreadMax limit the random delay of a gateway that finds its renewal due: a clock that jumps for a
	// whole fleet must not bring all gateways at once.
	spreadShare, spreadMax = 20, 10 * time.Minute
	// retryMin and retryMax limit the time between two attempts of any failed step.
	retryMin, retryMax = time.Second, 5 * time.Minute
)

// renewAt returns when the key of a record is renewed. The jitter is derived from the key, so a restart does not change it.
func renewAt(r identitydir.Record) time.Time {
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.Key)) // a hash never fails
	const steps = 1 << 16
	draw := float64(h.Sum32()%steps)/steps*2 - 1
	life := r.Expires.Sub(r.Issued)
	return r.Issued.Add(time.Duration(float64(life) * (renewShare + jitterShare*draw)))
}

// spreadLimit returns the longest random delay of a due renewal.
func spreadLimit(r identitydir.Record) time.Duration {
	return min(r.Expires.Sub(r.Issued)/spreadShare, spreadMax)
}

// retryBackoff counts consecutive failures.
type retryBackoff struct{ failures int }

// nextWait returns the pause after one more failure.
func (p *retryBackoff) nextWait() time.Duration {
	d := retryMin << min(p.failures, 20) //nolint:mnd // beyond any limit
	p.failures++
	return addJitter(min(d, retryMax))
}

func (p *retryBackoff) reset() { p.failures = 0 }

// addJitter subtracts up to 40 %.
func addJitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.6 + 0.4*rand.Float64()))
}
