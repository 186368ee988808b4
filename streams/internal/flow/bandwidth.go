package flow

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// MinLinkBudget keeps everyday objects in one piece: 16 KiB take 2.6 s at 50 kbit/s, and both ends of a link close it when the answer
	// to a ping is later than 10 s.
	MinLinkBudget = 16 << 10
	// initialLinkBudget is the estimate for a link without measurements: 5.2 s at 50 kbit/s.
	initialLinkBudget = 32 << 10
	// MaxLinkBudget is the largest useful page.
	MaxLinkBudget = 256 << 10
	// budgetPeriod is how long the bytes of one request may delay everything behind them.
	budgetPeriod = time.Second
	// budgetGrowth caps how fast the estimate may grow: the next budget is at most this many times the bytes that arrived quickly.
	budgetGrowth = 4
)

// BandwidthEstimator estimates how many bytes the link carries in one budgetPeriod, from the transfers it has observed. No part of a large
// payload is larger than the budget, so that small messages get in between and probes and heartbeats arrive in time.
type BandwidthEstimator struct {
	gauge prometheus.Gauge

	mu   sync.Mutex
	size int // guarded by mu
	// shortestReply is the shortest reply time so far, which is nearly the round trip alone. Guarded by mu.
	shortestReply time.Duration
}

// NewBandwidthEstimator returns an estimator of an unknown link; gauge shows its budget.
func NewBandwidthEstimator(gauge prometheus.Gauge) *BandwidthEstimator {
	p := &BandwidthEstimator{gauge: gauge}
	p.setBudget(initialLinkBudget)
	return p
}

// Budget returns how many bytes may be requested now.
func (p *BandwidthEstimator) Budget() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

// setBudget sets the estimate. The caller holds mu, or is the constructor.
func (p *BandwidthEstimator) setBudget(size int) {
	p.size = min(max(size, MinLinkBudget), MaxLinkBudget)
	p.gauge.Set(float64(p.size))
}

// ObserveReply records a reply of the given size and the time since its request. A long time may show that less must be requested.
func (p *BandwidthEstimator) ObserveReply(bytes int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shortestReply == 0 || took < p.shortestReply {
		p.shortestReply = took
	}
	// The round trip is not transfer time. Half of took is the lower bound, because the shortest reply included a transfer too.
	size := estimateBudget(bytes, max(took-p.shortestReply, took/2))
	if size > p.size || bytes >= p.size/2 {
		p.setBudget(size)
	}
}

// ObserveFlow records that the given bytes arrived back to back. The sender may have been slow, so this shows only that more may be
// requested.
func (p *BandwidthEstimator) ObserveFlow(bytes int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if size := estimateBudget(bytes, took); size > p.size {
		p.setBudget(size)
	}
}

// ObserveTimeout records that a requested reply did not arrive in time.
func (p *BandwidthEstimator) ObserveTimeout() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setBudget(p.size / budgetGrowth)
}

// ObserveNoReply records that there was no reply to the given bytes when the wait for it ended after the given time, because the link was lost, for
// example. They may be what the link was lost under: answers to pings and probes had to wait behind them. So after a second the link does not carry
// more than they are in that time, as far as is known, and the same bytes are not sent in one piece again.
func (p *BandwidthEstimator) ObserveNoReply(bytes int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if took < budgetPeriod || bytes < p.size/2 {
		return
	}
	p.setBudget(min(p.size, estimateBudget(bytes, took)))
}

// estimateBudget returns how many bytes fit into budgetPeriod if the given bytes took the given time.
func estimateBudget(bytes int, took time.Duration) int {
	most := budgetGrowth * bytes
	if took <= 0 {
		return most
	}
	return int(min(float64(most), float64(bytes)*float64(budgetPeriod)/float64(took)))
}
