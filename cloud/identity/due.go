package identity

import (
	"slices"
	"time"
)

// look asks for the links of a node to be judged.
func (e *Enforcer) look(node string) {
	e.mu.Lock()
	e.nodes[node] = true
	e.mu.Unlock()
	ring(e.nodesRing)
}

// sweep asks for a cell to be looked through, after each of these times.
func (e *Enforcer) sweep(account string, after []time.Duration) {
	now := time.Now()
	e.mu.Lock()
	for _, d := range after {
		e.cells[account] = append(e.cells[account], now.Add(d))
	}
	e.mu.Unlock()
	ring(e.cellsRing)
}

// expect asks for a cell to be looked through for newcomers.
func (e *Enforcer) expect(account string) {
	e.mu.Lock()
	_, there := e.joined[account]
	if !there {
		e.joined[account] = time.Now().Add(joinedAfter)
	}
	e.mu.Unlock()
	if !there {
		ring(e.cellsRing)
	}
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// take returns the nodes to look at, and whether each was just revoked.
func (e *Enforcer) take() map[string]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	nodes := make(map[string]bool, len(e.nodes))
	for node := range e.nodes {
		nodes[node] = e.fresh[node]
	}
	clear(e.nodes)
	clear(e.fresh)
	return nodes
}

// due returns the cell whose turn has come last, so that a revocation does not wait behind others, or how long none is due.
func (e *Enforcer) due(now time.Time) (account string, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait = sweepEvery
	var last time.Time
	for name, times := range e.cells {
		for _, at := range times {
			switch {
			case at.After(now):
				wait = min(wait, at.Sub(now))
			case at.After(last):
				account, last = name, at
			}
		}
	}
	if account != "" {
		e.cells[account] = slices.DeleteFunc(e.cells[account], func(at time.Time) bool { return !at.After(now) })
		if len(e.cells[account]) == 0 {
			delete(e.cells, account)
		}
		return account, wait
	}
	return e.newcomers(now, wait)
}

// newcomers is due for the cells that have some, the first one first; with mu held.
func (e *Enforcer) newcomers(now time.Time, wait time.Duration) (account string, until time.Duration) {
	var first time.Time
	for name, at := range e.joined {
		switch {
		case at.After(now):
			wait = min(wait, at.Sub(now))
		case account == "" || at.Before(first):
			account, first = name, at
		}
	}
	delete(e.joined, account)
	return account, wait
}
