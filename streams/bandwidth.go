package streams

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// minLinkBudget keeps the objects of everyday whole: 16 KiB are 2.6 s at 50 kbit/s, and both ends of a link close it when an
	// answer to a ping is later than 10 s.
	minLinkBudget = 16 << 10
	// initialLinkBudget is what a link is believed to carry that nothing is known of: 5.2 s at 50 kbit/s.
	initialLinkBudget = 32 << 10
	// maxLinkBudget is a page as large as there is a use for.
	maxLinkBudget = 256 << 10
	// budgetPeriod is how long what was asked for at once may keep everything behind it waiting.
	budgetPeriod = time.Second
	// budgetGrowth is how many times more than came quickly is dared the next time.
	budgetGrowth = 4
)

// bandwidthEstimator believes how many bytes a link carries in a turn, by what it has carried. No part of a large thing is larger, so
// that a small one comes in between, and a probe or a heartbeat in time.
type bandwidthEstimator struct {
	gauge prometheus.Gauge

	mu   sync.Mutex
	size int // guarded by mu
	// shortestReply is the shortest answer so far: nearly the round trip alone. Guarded by mu.
	shortestReply time.Duration
}

func newBandwidthEstimator(gauge prometheus.Gauge) *bandwidthEstimator {
	p := &bandwidthEstimator{gauge: gauge}
	p.setBudget(initialLinkBudget)
	return p
}

// budget is how many bytes may be asked for now.
func (p *bandwidthEstimator) budget() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

// LinkBudget is how many bytes the link to the cloud is believed to take at a time now.
func (d *Delivery) LinkBudget() int { return d.bandwidth.budget() }

// setBudget is called with mu held, or before anybody knows of p.
func (p *bandwidthEstimator) setBudget(size int) {
	p.size = min(max(size, minLinkBudget), maxLinkBudget)
	p.gauge.Set(float64(p.size))
}

// observeReply notes an answer of so many bytes, and how long it took from the question. A long one may show that less must be
// asked for.
func (p *bandwidthEstimator) observeReply(bytes int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.shortestReply == 0 || took < p.shortestReply {
		p.shortestReply = took
	}
	// The round trip is no time of transfer; a half is kept, as the quickest answer had a transfer too.
	size := estimateBudget(bytes, max(took-p.shortestReply, took/2))
	if size > p.size || bytes >= p.size/2 {
		p.setBudget(size)
	}
}

// observeFlow notes that so many bytes came one behind the other. They may have been sent slowly, so this shows only that more
// may be asked for.
func (p *bandwidthEstimator) observeFlow(bytes int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if size := estimateBudget(bytes, took); size > p.size {
		p.setBudget(size)
	}
}

// observeTimeout notes that what was asked for did not come in time.
func (p *bandwidthEstimator) observeTimeout() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.setBudget(p.size / budgetGrowth)
}

// estimateBudget is what fits into a turn if so many bytes took so long.
func estimateBudget(bytes int, took time.Duration) int {
	most := budgetGrowth * bytes
	if took <= 0 {
		return most
	}
	return int(min(float64(most), float64(bytes)*float64(budgetPeriod)/float64(took)))
}
