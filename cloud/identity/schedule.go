package identity

import (
	"slices"
	"time"
)

// scheduleNode schedules an evaluation of a node's links after some time.
func (e *Enforcer) scheduleNode(node string, after time.Duration) {
	at := time.Now().Add(after)
	e.mu.Lock()
	if was, there := e.nodeSchedule[node]; !there || at.Before(was) {
		e.nodeSchedule[node] = at
	}
	e.mu.Unlock()
	wakeUp(e.nodesChanged)
}

// scheduleCell schedules checks of a cell after each of these times.
func (e *Enforcer) scheduleCell(account string, after []time.Duration) {
	now := time.Now()
	e.mu.Lock()
	for _, d := range after {
		e.cellSchedule[account] = append(e.cellSchedule[account], now.Add(d))
	}
	e.mu.Unlock()
	wakeUp(e.cellsChanged)
}

// scheduleNewcomers schedules a check of a cell for newly admitted links.
func (e *Enforcer) scheduleNewcomers(account string) {
	e.mu.Lock()
	_, there := e.newcomerCells[account]
	if !there {
		e.newcomerCells[account] = time.Now().Add(newcomerDelay)
	}
	e.mu.Unlock()
	if !there {
		wakeUp(e.cellsChanged)
	}
}

func wakeUp(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// dueNodes returns the nodes to evaluate now, those that were just revoked first, and the time until the next one is due.
func (e *Enforcer) dueNodes(now time.Time) (nodes []string, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait = sweepInterval
	for node, at := range e.nodeSchedule {
		if at.After(now) {
			wait = min(wait, at.Sub(now))
			continue
		}
		nodes = append(nodes, node)
		delete(e.nodeSchedule, node)
	}
	first := func(node string) int {
		if e.pendingRevocations[node] {
			return 0
		}
		return 1
	}
	slices.SortFunc(nodes, func(a, b string) int { return first(a) - first(b) })
	return nodes, wait
}

// dueCell returns the cell that has waited longest for its check, or the time until one is due. No cell is postponed
// indefinitely; a revocation does not wait here, as known links are closed without a check of the cell.
func (e *Enforcer) dueCell(now time.Time) (account string, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	wait = sweepInterval
	var first time.Time
	for name, times := range e.cellSchedule {
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
		e.cellSchedule[account] = slices.DeleteFunc(e.cellSchedule[account], func(at time.Time) bool { return !at.After(now) })
		if len(e.cellSchedule[account]) == 0 {
			delete(e.cellSchedule, account)
		}
		return account, wait
	}
	return e.dueNewcomerCell(now, wait)
}

// dueNewcomerCell is dueCell for the cells with newly admitted links, the one that is due longest first. The caller holds mu.
func (e *Enforcer) dueNewcomerCell(now time.Time, wait time.Duration) (account string, until time.Duration) {
	var first time.Time
	for name, at := range e.newcomerCells {
		switch {
		case at.After(now):
			wait = min(wait, at.Sub(now))
		case account == "" || at.Before(first):
			account, first = name, at
		}
	}
	delete(e.newcomerCells, account)
	return account, wait
}
