package gateway

import (
	"net/netip"
	"sync"
)

const (
	// maxFromOne and maxToPort bound the connections to one port of the direct way, so that who is silent there leaves most of the
	// node's streams (1,024) to others. An apiserver has at most one for each command that runs.
	maxFromOne = 64
	maxToPort  = 256
)

// crowd counts the connections to ports.
type crowd struct {
	mu   sync.Mutex // guards all below
	from map[visitor]int
	to   map[uint16]int
}

// visitor is a source address at a port.
type visitor struct {
	from netip.Addr
	port uint16
}

func newCrowd() *crowd { return &crowd{from: map[visitor]int{}, to: map[uint16]int{}} }

// enter counts a connection until leave, which is called once; not ok if too many are there.
func (c *crowd) enter(from netip.Addr, port uint16) (leave func(), ok bool) {
	v := visitor{from, port}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.from[v] >= maxFromOne || c.to[port] >= maxToPort {
		return nil, false
	}
	c.from[v]++
	c.to[port]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.from[v]--; c.from[v] == 0 {
			delete(c.from, v)
		}
		if c.to[port]--; c.to[port] == 0 {
			delete(c.to, port)
		}
	}, true
}
