package identity

import (
	"slices"
	"time"
)

// look asks for the links of a node to be judged, after some time.
func (e *Enforcer) look(node string, after time.Duration) {
	at := time.Now().Add(after)
	e.mu.Lock()
	if was, there := e.nodes[node]; !there || at.Before(was) {
		e.nodes[node] = at
	}
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

// take returns the nodes to look at now, those that were just revoked first, and how long no other is due.
func (e *Enforcer) take(now time.Time) (nodes []string, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait = sweepEvery
	for node, at := range e.nodes {
		if at.After(now) {
			wait = min(wait, at.Sub(now))
			continue
		}
		nodes = append(nodes, node)
		delete(e.nodes, node)
	}
	first := func(node string) int {
		if e.fresh[node] {
			return 0
		}
		return 1
	}
	slices.SortFunc(nodes, func(a, b string) int { return first(a) - first(b) })
	return nodes, wait
}

// due returns the cell that has waited longest for its turn, or how long none is due. No cell is put off for ever; a revocation does not
// wait here, as links that are known are closed without a look at the cell.
func (e *Enforcer) due(now time.Time) (account string, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait = sweepEvery
	var first time.Time
	for name, times := range e.cells {
		for _, at := range times {
			switch {
			case at.After(now):
				wait = min(wait, at.Sub(now))
			case account == "" || at.Before(first):
				account, first = name, at
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
