package membership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

const (
	// memberRefreshInterval and memberExpiry allow a takeover within 2 s: a dead replica expires after 1.5 s.
	memberRefreshInterval = 400 * time.Millisecond
	memberExpiry          = 1500 * time.Millisecond
	// memberCheckInterval is the maximum delay of detecting a dead replica after memberExpiry.
	memberCheckInterval = 100 * time.Millisecond
	// watchStallTimeout is when a silent watch counts as dead: longer than one refresh may take.
	watchStallTimeout = 3 * time.Second
	// memberCooldown is how long a replica that was stopped stays out of the live set while others serve: its
	// Kubernetes watches that broke meanwhile restart with a backoff of up to 2 s and a list.
	memberCooldown = 10 * time.Second
	// reopenTimeout bounds the start of a watch.
	reopenTimeout = time.Second
	// refreshTimeout bounds the wait for the answer to one refresh, so that three fit into memberExpiry: a server that stops never answers.
	// A refresh without an answer still counts when it arrives. During a leader election refreshes fail and the view stays unchanged.
	refreshTimeout = 500 * time.Millisecond
	// leaveTimeout bounds the deletion of the entry.
	leaveTimeout = 2 * time.Second
)

// Members is the live set of cloudcores and decides which of them owns a node. Each replica refreshes its entry in a
// bucket and evaluates the others by the age of their entries, on its own clock. A replica that does not receive its
// own refreshes cannot know the state of the others either: it keeps its last view, but LeaseValid returns false.
//
// Ownership distributes the work and does not protect it: two replicas that own a node for a moment publish the same
// messages, and the stream refuses the second. A replica that was stopped or cut off for so long that others may have
// taken over its nodes owns them afterwards in a new term.
type Members struct {
	self string
	kv   jetstream.KeyValue
	// links returns this replica's connections to the hub; nil: they are not published.
	links func() []Link
	log   *zap.Logger
	// failedPeers receives replicas that stopped without leaving.
	failedPeers chan FailedPeer
	// watchRequests holds a request for another watch.
	watchRequests chan struct{}

	mu           sync.Mutex
	lastSeen     map[string]time.Time // guarded by mu; last refresh by member
	entries      map[string]string    // guarded by mu; the last value by member, also of those that are gone: a new watch delivers it again
	ownRefreshes []ownRefresh         // guarded by mu; own refreshes that were begun and may still count
	lastRenewal  time.Time            // guarded by mu; when the newest own refresh that arrived was begun
	rejoinedAt   time.Time            // guarded by mu; when this replica last returned: earlier refreshes of the others did not reach it
	lastRunAt    time.Time            // guarded by mu; when the refresh loop last ran
	resumedAt    time.Time            // guarded by mu; when the loop ran again after a stop, zero if not in cooldown
	peerSeenAt   time.Time            // guarded by mu; when the last refresh of another replica arrived
	live         []string             // guarded by mu; sorted
	views        viewHistory          // guarded by mu
}

// ownRefresh is one refresh of this replica's own entry.
type ownRefresh struct {
	value string
	at    time.Time
}

// memberEntry is the entry that a replica writes of itself. An entry of an older version contains only a time.
type memberEntry struct {
	At time.Time `json:"at"`
	// Links are its connections to the hub, for a replica that detects its failure.
	Links []Link `json:"links,omitempty"`
}

// Link is a client connection as the hub identifies it.
type Link struct {
	Server string `json:"server"`
	Client uint64 `json:"client"`
}

// FailedPeer is a replica whose refreshes have stopped although it did not leave.
type FailedPeer struct {
	member string
	links  []Link
}

// maxFailedPeers is how many failed replicas may wait to be processed; further ones are dropped.
const maxFailedPeers = 16

// New creates the view of one replica; until Start has received its own entry it owns nothing. links returns its
// connections to the hub, which the others learn; nil for none.
func New(self string, kv jetstream.KeyValue, links func() []Link, log *zap.Logger) *Members {
	return &Members{
		self: self, kv: kv, links: links, log: log, failedPeers: make(chan FailedPeer, maxFailedPeers),
		watchRequests: make(chan struct{}, 1), // one request is enough
		lastSeen:      map[string]time.Time{}, entries: map[string]string{}, views: newViewHistory(),
	}
}

// Owns reports whether this replica is the owner of a node according to its view.
func (m *Members) Owns(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return ownerOf(m.live, node) == m.self
}

// Owner returns the live replica that owns a node, "" if none is known.
func (m *Members) Owner(node string) string { return ownerOf(m.Live(), node) }

// FailedPeers returns the channel of the replicas that stopped without leaving. It has one receiver, and drops what
// that receiver is slow to take.
func (m *Members) FailedPeers() <-chan FailedPeer { return m.failedPeers }

// Term returns a number for the uninterrupted time for which this replica has owned a node, 0 if it does not own it.
// What was known of the node in another term may be stale.
func (m *Members) Term(node string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.views.termOf(m.self, node)
}

// LeaseValid reports whether no other replica can have declared this one dead yet. Call it right before each write:
// time passes while the process or the machine is stopped.
func (m *Members) LeaseValid() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return elapsedSince(m.lastRenewal, time.Now()) <= memberExpiry
}

// elapsedSince returns the time since at by the clock that shows more: the monotonic clock stands still while a machine sleeps.
func elapsedSince(at, now time.Time) time.Duration {
	return max(now.Sub(at), now.Round(0).Sub(at.Round(0)))
}

// Changed returns a channel that closes at the next change of the live set.
func (m *Members) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.views.changed
}

// Live returns the live replicas, sorted.
func (m *Members) Live() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.live)
}

// RestartWatch replaces the watch of the others, which may have ended without a word: a server of the hub is gone. It does not block.
func (m *Members) RestartWatch() {
	select {
	case m.watchRequests <- struct{}{}:
	default:
	}
}

// Start refreshes the entry and watches the others until ctx ends, then leaves at once and returns nil.
func (m *Members) Start(ctx context.Context) error {
	watcher, err := m.kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch members: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.runRefresh(gctx) })
	g.Go(func() error { return m.watchPeers(gctx, watcher) })
	err = g.Wait()
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
	defer cancel()
	if gone := m.kv.Delete(leave, m.self); gone != nil {
		m.log.Info("members entry left to expire", zap.Error(gone))
	}
	if ctx.Err() == nil {
		return err
	}
	return nil // also if the watch was found ended before ctx, with which it ends
}

func (m *Members) runRefresh(ctx context.Context) error {
	ticker := time.NewTicker(memberRefreshInterval)
	defer ticker.Stop()
	for {
		if !m.inCooldown(time.Now()) {
			if err := m.putEntry(ctx); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// putEntry refreshes this replica's entry.
func (m *Members) putEntry(ctx context.Context) error {
	own, err := m.nextRefresh(time.Now())
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.recordRefresh(own)
	m.mu.Unlock()
	pctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	if _, err := m.kv.Put(pctx, m.self, []byte(own.value)); err != nil && ctx.Err() == nil {
		m.log.Debug("member not refreshed", zap.Error(err))
	}
	m.mu.Lock()
	m.lastRunAt = time.Now() // the time that the hub takes is no stop
	m.mu.Unlock()
	return nil
}

// inCooldown reports whether this replica should stay out of the live set for a while, because it was stopped for so
// long that others have taken over its nodes: its Kubernetes cache is stale. The cooldown lasts only while refreshes of
// another replica arrive. Call it before each refresh.
func (m *Members) inCooldown(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.lastRunAt.IsZero() && elapsedSince(m.lastRunAt, now) > memberExpiry && len(m.live) > 1 {
		m.log.Warn("was stopped, and rests while others serve", zap.Duration("took", elapsedSince(m.lastRunAt, now)))
		m.resumedAt = now
	}
	m.lastRunAt = now
	if m.resumedAt.IsZero() {
		return false
	}
	last := m.resumedAt
	if m.peerSeenAt.After(last) {
		last = m.peerSeenAt
	}
	if elapsedSince(last, now) > memberExpiry || elapsedSince(m.resumedAt, now) >= memberCooldown {
		m.resumedAt = time.Time{}
	}
	return !m.resumedAt.IsZero()
}

// nextRefresh returns this replica's next refresh.
func (m *Members) nextRefresh(now time.Time) (ownRefresh, error) {
	e := memberEntry{At: now.UTC()}
	if m.links != nil {
		e.Links = m.links()
	}
	value, err := json.Marshal(e)
	return ownRefresh{value: string(value), at: now}, err
}

// watchPeers receives the refreshes. A watch lives on one server of the hub and may end with it silently. A watch that
// has not delivered this replica's own refresh for watchStallTimeout is therefore replaced by a new one.
func (m *Members) watchPeers(ctx context.Context, watcher jetstream.KeyWatcher) error {
	ticker := time.NewTicker(memberCheckInterval)
	defer ticker.Stop()
	began, requested, end := time.Now(), false, context.CancelFunc(func() {})
	defer func() { end() }()
	// The next watch is opened beside the current one, which may still deliver: while the hub elects a leader there is no answer.
	opened, opening := make(chan openedWatch, 1), sync.WaitGroup{} // one is opened at a time
	isOpening := false
	defer func() {
		opening.Wait()
		select {
		case next := <-opened:
			next.close()
		default:
		}
	}()
	for {
		select {
		case <-ctx.Done():
			_ = watcher.Stop() // fails only when the connection is gone
			return nil
		case <-m.watchRequests:
			requested = true
		case next := <-opened:
			isOpening = false
			if next.err != nil {
				m.log.Debug("members not watched again", zap.Error(next.err))
				continue
			}
			_ = watcher.Stop() // the same
			end()
			watcher, end, requested = next.watcher, next.end, false
		case <-ticker.C:
			m.evaluateLive(time.Now())
			if isOpening || !requested && !m.watchStalled(began) {
				continue
			}
			began, isOpening = time.Now(), true
			opening.Go(func() { opened <- m.reopenWatch(ctx) })
		case entry, ok := <-watcher.Updates():
			if !ok {
				return errors.New("the watch of the members ended")
			}
			switch {
			case entry == nil: // the end of the initial values; the entry of a dead replica among them counts for memberExpiry
			case entry.Operation() == jetstream.KeyValuePut:
				m.observeRefresh(entry.Key(), string(entry.Value()), time.Now())
			default:
				m.removeMember(entry.Key(), time.Now())
			}
		}
	}
}

// openedWatch is the outcome of an attempt to open a watch, which lives until end.
type openedWatch struct {
	watcher jetstream.KeyWatcher
	end     context.CancelFunc
	err     error
}

func (w openedWatch) close() {
	if w.err == nil {
		_ = w.watcher.Stop() // fails only when the connection is gone
		w.end()
	}
}

// reopenWatch starts another watch. While the hub elects a leader there is no answer, and the request is lost: it is therefore abandoned soon,
// and repeated.
func (m *Members) reopenWatch(ctx context.Context) openedWatch {
	ctx, end := context.WithCancel(ctx)
	late := time.AfterFunc(reopenTimeout, end)
	watcher, err := m.kv.WatchAll(ctx)
	if err == nil && !late.Stop() {
		err = context.DeadlineExceeded
		_ = watcher.Stop() // it ends with its context anyway
	}
	if err != nil {
		end()
	}
	return openedWatch{watcher, end, err}
}

// watchStalled reports whether a watch that began at a time has been silent for too long.
func (m *Members) watchStalled(began time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, last := time.Now(), m.lastRenewal
	if !m.resumedAt.IsZero() {
		last = m.peerSeenAt // in cooldown there are no own refreshes
	}
	return now.Sub(began) > watchStallTimeout && elapsedSince(last, now) > watchStallTimeout
}

// observeRefresh records a refresh that arrived.
func (m *Members) observeRefresh(member, value string, now time.Time) {
	m.mu.Lock()
	if member == m.self {
		at := slices.IndexFunc(m.ownRefreshes, func(r ownRefresh) bool { return r.value == value })
		if at < 0 {
			m.mu.Unlock()
			return // from an earlier process, or too old to count
		}
		m.renewLease(m.ownRefreshes[at].at, now)
	} else {
		if last, seen := m.entries[member]; seen && last == value {
			m.mu.Unlock()
			return // the beginning of a watch repeats it: no sign of life
		}
		m.peerSeenAt = now
	}
	m.lastSeen[member], m.entries[member] = now, value
	known := slices.Contains(m.live, member)
	m.mu.Unlock()
	if !known {
		m.evaluateLive(now)
	}
}

// recordRefresh records an own refresh that is begun, and drops those that would be too old to count when they arrive.
// The caller holds mu.
func (m *Members) recordRefresh(own ownRefresh) {
	m.ownRefreshes = slices.DeleteFunc(m.ownRefreshes, func(r ownRefresh) bool { return elapsedSince(r.at, own.at) > memberExpiry })
	m.ownRefreshes = append(m.ownRefreshes, own)
}

// renewLease records the arrival of an own refresh that was begun at a time. The others have received it too, later
// than it began: they therefore cannot expire this replica before memberExpiry has passed since then. The caller holds mu.
func (m *Members) renewLease(began, now time.Time) {
	if !m.lastRenewal.IsZero() && elapsedSince(m.lastRenewal, began) > memberExpiry {
		m.log.Warn("was away from the other members", zap.Duration("took", elapsedSince(m.lastRenewal, began)))
		m.rejoinedAt = now
		m.views.begin(nil)
		m.views.begin(m.live)
	}
	m.lastRenewal = began
}

// removeMember removes a member that has left.
func (m *Members) removeMember(member string, now time.Time) {
	m.mu.Lock()
	delete(m.lastSeen, member)
	delete(m.entries, member) // it has left the bucket: no watch repeats it
	m.mu.Unlock()
	m.evaluateLive(now)
}

// evaluateLive computes the live set, unless this replica is itself cut off.
func (m *Members) evaluateLive(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if elapsedSince(m.lastRenewal, now) > memberExpiry {
		return
	}
	var live []string
	for member, at := range m.lastSeen {
		if at.Before(m.rejoinedAt) {
			at = m.rejoinedAt // this replica could not receive its refreshes
		}
		if now.Sub(at) <= memberExpiry {
			live = append(live, member)
		} else {
			m.expireMember(member)
		}
	}
	slices.Sort(live)
	if slices.Equal(live, m.live) {
		return
	}
	m.log.Info("members changed", zap.Strings("live", live))
	m.live = live
	m.views.begin(live)
}

// expireMember removes a replica that stopped without leaving, and reports it in failedPeers. The caller holds mu.
func (m *Members) expireMember(member string) {
	var last memberEntry
	if json.Unmarshal([]byte(m.entries[member]), &last) != nil {
		last.Links = nil // an entry of an older version
	}
	select {
	case m.failedPeers <- FailedPeer{member: member, links: last.Links}:
	default:
	}
	delete(m.lastSeen, member)
}
