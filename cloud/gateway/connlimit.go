package gateway

import (
	"net/netip"
	"sync"
)

const (
	// maxPerSource and maxPerPort bound the connections to one port of direct access, so that idle clients there leave
	// most of the node's streams (1,024) to others. An apiserver has at most one for each command that runs.
	maxPerSource = 64
	maxPerPort   = 256
)

// connLimiter limits the concurrent connections to ports.
type connLimiter struct {
	mu       sync.Mutex // guards all fields below
	bySource map[portSource]int
	byPort   map[uint16]int
}

// portSource is a source address at a port.
type portSource struct {
	from netip.Addr
	port uint16
}

func newConnLimiter() *connLimiter {
	return &connLimiter{bySource: map[portSource]int{}, byPort: map[uint16]int{}}
}

// acquire counts a connection until leave, which is called once; ok is false if there are too many.
func (c *connLimiter) acquire(from netip.Addr, port uint16) (leave func(), ok bool) {
	v := portSource{from, port}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.bySource[v] >= maxPerSource || c.byPort[port] >= maxPerPort {
		return nil, false
	}
	c.bySource[v]++
	c.byPort[port]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.bySource[v]--; c.bySource[v] == 0 {
			delete(c.bySource, v)
		}
		if c.byPort[port]--; c.byPort[port] == 0 {
			delete(c.byPort, port)
		}
	}, true
}
