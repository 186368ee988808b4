package streams

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// leastTake keeps the objects of everyday whole: 16 KiB are 2.6 s at 50 kbit/s, and both ends of a link close it when an
	// answer to a ping is later than 10 s.
	leastTake = 16 << 10
	// firstTake is what a link is believed to carry that nothing is known of: 5.2 s at 50 kbit/s.
	firstTake = 32 << 10
	// mostTake is a page as large as there is a use for.
	mostTake = 256 << 10
	// turn is how long what was asked for at once may keep everything behind it waiting.
	turn = time.Second
	// stride is how many times more than came quickly is dared the next time.
	stride = 4
)

// pace believes how many bytes a link carries in a turn, by what it has carried. No part of a large thing is larger, so
// that a small one comes in between, and a probe or a heartbeat in time.
type pace struct {
	gauge prometheus.Gauge

	mu   sync.Mutex
	size int // guarded by mu
	// quickest is the shortest answer so far: nearly the round trip alone. Guarded by mu.
	quickest time.Duration
}

func newPace(gauge prometheus.Gauge) *pace {
	p := &pace{gauge: gauge}
	p.set(firstTake)
	return p
}

// take is how many bytes may be asked for now.
func (p *pace) take() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.size
}

// Take is how many bytes the link to the cloud is believed to take at a time now.
func (d *Delivery) Take() int { return d.pace.take() }

// set is called with mu held, or before anybody knows of p.
func (p *pace) set(size int) {
	p.size = min(max(size, leastTake), mostTake)
	p.gauge.Set(float64(p.size))
}

// answered notes an answer of so many bytes, and how long it took from the question. A long one may show that less must be
// asked for.
func (p *pace) answered(bytes int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.quickest == 0 || took < p.quickest {
		p.quickest = took
	}
	// The round trip is no time of transfer; a half is kept, as the quickest answer had a transfer too.
	size := carried(bytes, max(took-p.quickest, took/2))
	if size > p.size || bytes >= p.size/2 {
		p.set(size)
	}
}

// flowed notes that so many bytes came one behind the other. They may have been sent slowly, so this shows only that more
// may be asked for.
func (p *pace) flowed(bytes int, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if size := carried(bytes, took); size > p.size {
		p.set(size)
	}
}

// unanswered notes that what was asked for did not come in time.
func (p *pace) unanswered() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(p.size / stride)
}

// carried is what fits into a turn if so many bytes took so long.
func carried(bytes int, took time.Duration) int {
	most := stride * bytes
	if took <= 0 {
		return most
	}
	return int(min(float64(most), float64(bytes)*float64(turn)/float64(took)))
}
