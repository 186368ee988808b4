package links

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/streams/subject"
)

const (
	// sweepInterval is the interval between checks of all links, besides those after each change of a record.
	sweepInterval = time.Minute
	// recentRevocation is how long a revocation is checked again in each round: a replica that had not received it may
	// admit the node's link.
	recentRevocation = 10 * time.Minute
	// newcomerDelay is the delay between an admission and the check of its cell: by then the link is registered, and
	// all admissions in between cost one check.
	newcomerDelay = 5 * time.Second
	// newcomerPace is the minimum time between two such checks, of whatever cells. In a large fleet links are admitted to all
	// cells all the time. With 100,000 nodes in 64 cells the hub lists 1,563 links, about 0.7 MB of JSON, for one check.
	newcomerPace = time.Second
	// recheckDelay is longer than an informer usually lags.
	recheckDelay = 2 * time.Second
	// strictPeriod is longer than a cell may wait for its check.
	strictPeriod = time.Minute
)

// recheckDelays returns the times after a revocation when the cell is checked once more: a link may have been admitted
// but not be registered yet, and a replica may receive the revocation later.
func recheckDelays() []time.Duration {
	return []time.Duration{0, time.Second, 3 * time.Second, 10 * time.Second}
}

// Records are the records of all nodes' keys, as this replica knows them; identity.Records is one.
type Records interface {
	// Lookup returns the record of a node, or nil.
	Lookup(node string) *identity.Record
	// IsRevoked reports whether a key is rejected permanently.
	IsRevoked(key string) bool
	// ReadLive reads the record of a node from Kubernetes, nil if there is none.
	ReadLive(ctx context.Context, node string) (*identity.Record, error)
	// All returns each record, in no order.
	All() []*identity.Record
	// Synced returns a channel that closes when all records were read once.
	Synced() <-chan struct{}
}

// Schedule is what an Enforcer has to check, and when. Changes are reported to it by those that detect them.
type Schedule struct {
	policy  identity.Policy
	records Records

	mu sync.Mutex
	// nodeSchedule and cellSchedule are the nodes and cells to check, and when; guarded by mu.
	nodeSchedule map[string]time.Time
	cellSchedule map[string][]time.Time
	// newcomerCells are cells that have newly admitted links, and when to check them; guarded by mu.
	newcomerCells map[string]time.Time
	// newcomersFrom is when the next of these checks may be made; guarded by mu.
	newcomersFrom time.Time
	// strictUntil is until when unknown links of a node are closed; guarded by mu.
	strictUntil map[string]time.Time
	// pendingRevocations are nodes that were just revoked and whose links are not all closed yet; guarded by mu.
	pendingRevocations map[string]bool

	nodesChanged, cellsChanged chan struct{} // each has a buffer of one: an entry was added
}

// NewSchedule creates an empty schedule for links of nodes with these records.
func NewSchedule(policy identity.Policy, records Records) *Schedule {
	return &Schedule{
		policy: policy, records: records,
		nodeSchedule: make(map[string]time.Time), cellSchedule: make(map[string][]time.Time), newcomerCells: make(map[string]time.Time),
		strictUntil: make(map[string]time.Time), pendingRevocations: make(map[string]bool),
		nodesChanged: make(chan struct{}, 1), cellsChanged: make(chan struct{}, 1),
	}
}

// accountOf returns the cell of a node.
func (s *Schedule) accountOf(node string) string { return subject.CellAccount(node, s.policy.Cells) }

// OnRecordChanged is the callback of identity.Records: it schedules what a change requires.
func (s *Schedule) OnRecordChanged(was, is *identity.Record) {
	switch {
	case is == nil:
		s.scheduleNode(was.Node, 0)
		s.scheduleCell(s.accountOf(was.Node), recheckDelays())
		return
	case was == nil: // the node or this replica is new: older links may be left
		if now := time.Now(); isSuspect(is, now) {
			if s.isNewRevocation(is, now) {
				s.markRevoked(is.Node)
			}
			s.scheduleNode(is.Node, 0)
			s.scheduleCell(s.accountOf(is.Node), []time.Duration{0})
		}
		return
	}
	revoked := was.RevokedAt.IsZero() && !is.RevokedAt.IsZero()
	if revoked {
		s.markRevoked(is.Node)
	}
	s.scheduleNode(is.Node, 0)
	if revoked || slices.ContainsFunc(is.Revoked, func(key string) bool { return !slices.Contains(was.Revoked, key) }) {
		s.scheduleCell(s.accountOf(is.Node), recheckDelays())
	}
	if gone := func(key string) bool { return !slices.Contains(is.ValidKeys(), key) }; slices.ContainsFunc(was.ValidKeys(), gone) {
		s.markStrict(is.Node)
	}
}

// isNewRevocation reports whether a record that is new here is of a revocation that may not have been reported yet: of
// a Node that had no record, or of one while this replica was starting.
func (s *Schedule) isNewRevocation(is *identity.Record, now time.Time) bool {
	if is.RevokedAt.IsZero() {
		return false
	}
	span := sweepInterval
	select {
	case <-s.records.Synced():
		span = recentRevocation
	default:
	}
	return now.Sub(is.RevokedAt) < span
}

// markRevoked records that a node was just revoked.
func (s *Schedule) markRevoked(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pendingRevocations[node] = true
}

// markClosed records that the links of a node that was just revoked are closed.
func (s *Schedule) markClosed(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pendingRevocations, node)
}

// IsClosing reports whether a node was just revoked and not all of its links are closed.
func (s *Schedule) IsClosing(node string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pendingRevocations[node]
}

// markStrict requests that unknown links of a node are closed: they may belong to a key that another has replaced. The
// node's own link is known: a gateway has only the link on which it requested its key, or one that it made with the key.
func (s *Schedule) markStrict(node string) {
	now := time.Now()
	s.mu.Lock()
	maps.DeleteFunc(s.strictUntil, func(_ string, until time.Time) bool { return now.After(until) })
	s.strictUntil[node] = now.Add(strictPeriod)
	s.mu.Unlock()
	s.scheduleCell(s.accountOf(node), []time.Duration{recheckDelay})
}

// isStrict reports whether unknown links of a node are closed now.
func (s *Schedule) isStrict(node string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Before(s.strictUntil[node])
}

// isSuspect reports whether a link of the node may be one that must not stay.
func isSuspect(record *identity.Record, now time.Time) bool {
	return record == nil || !record.RevokedAt.IsZero() || len(record.Revoked) > 0 || !now.Before(record.Expires)
}

// OnAdmitted is the callback of Registry. A replica that has not received a revocation may have admitted a link that must
// not stay. A replica that has not received an enrolment yet cannot decide about it. Therefore only a known revocation
// counts here, and only after a delay: a link that is not registered yet cannot be closed. The replica that admitted
// the link (here) checks what the link tells the hub about itself.
func (s *Schedule) OnAdmitted(node string, here bool, keys []string) {
	if here {
		s.scheduleNewcomers(s.accountOf(node))
	}
	now, record := time.Now(), s.records.Lookup(node)
	for _, key := range keys {
		if why := identity.KeyStatus(record, key, s.records.IsRevoked(key), now); why == identity.ReasonRevokedKey || why == identity.ReasonRevokedNode {
			s.scheduleCell(s.accountOf(node), []time.Duration{recheckDelay})
			return
		}
	}
}

// scheduleNode schedules an evaluation of a node's links after some time.
func (s *Schedule) scheduleNode(node string, after time.Duration) {
	at := time.Now().Add(after)
	s.mu.Lock()
	if was, there := s.nodeSchedule[node]; !there || at.Before(was) {
		s.nodeSchedule[node] = at
	}
	s.mu.Unlock()
	wakeUp(s.nodesChanged)
}

// scheduleCell schedules checks of a cell after each of these times.
func (s *Schedule) scheduleCell(account string, after []time.Duration) {
	now := time.Now()
	s.mu.Lock()
	for _, d := range after {
		s.cellSchedule[account] = append(s.cellSchedule[account], now.Add(d))
	}
	s.mu.Unlock()
	wakeUp(s.cellsChanged)
}

// scheduleNewcomers schedules a check of a cell for newly admitted links.
func (s *Schedule) scheduleNewcomers(account string) {
	s.mu.Lock()
	_, there := s.newcomerCells[account]
	if !there {
		s.newcomerCells[account] = time.Now().Add(newcomerDelay)
	}
	s.mu.Unlock()
	if !there {
		wakeUp(s.cellsChanged)
	}
}

func wakeUp(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// dueNodes returns the nodes to evaluate now, those that were just revoked first, and the time until the next one is due.
func (s *Schedule) dueNodes(now time.Time) (nodes []string, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait = sweepInterval
	for node, at := range s.nodeSchedule {
		if at.After(now) {
			wait = min(wait, at.Sub(now))
			continue
		}
		nodes = append(nodes, node)
		delete(s.nodeSchedule, node)
	}
	first := func(node string) int {
		if s.pendingRevocations[node] {
			return 0
		}
		return 1
	}
	slices.SortFunc(nodes, func(a, b string) int { return first(a) - first(b) })
	return nodes, wait
}

// dueCell returns the cell that has waited longest for its check, or the time until one is due. No cell is postponed
// indefinitely; a revocation does not wait here, as known links are closed without a check of the cell.
func (s *Schedule) dueCell(now time.Time) (account string, wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	wait = sweepInterval
	var first time.Time
	for name, times := range s.cellSchedule {
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
		s.cellSchedule[account] = slices.DeleteFunc(s.cellSchedule[account], func(at time.Time) bool { return !at.After(now) })
		if len(s.cellSchedule[account]) == 0 {
			delete(s.cellSchedule, account)
		}
		return account, wait
	}
	return s.dueNewcomerCell(now, wait)
}

// dueNewcomerCell is dueCell for the cells with newly admitted links, the one that is due longest first. The caller holds mu.
func (s *Schedule) dueNewcomerCell(now time.Time, wait time.Duration) (account string, until time.Duration) {
	var first time.Time
	for name, at := range s.newcomerCells {
		switch {
		case at.After(now):
			wait = min(wait, at.Sub(now))
		case account == "" || at.Before(first):
			account, first = name, at
		}
	}
	switch left := s.newcomersFrom.Sub(now); {
	case account == "":
		return "", wait
	case left > 0:
		return "", min(wait, left)
	}
	delete(s.newcomerCells, account)
	s.newcomersFrom = now.Add(newcomerPace)
	return account, wait
}
