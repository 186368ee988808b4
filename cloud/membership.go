package cloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

const (
	// memberRefreshInterval and memberExpiry give a takeover within 2 s: a dead replica is missed after 1.5 s.
	memberRefreshInterval = 400 * time.Millisecond
	memberExpiry          = 1500 * time.Millisecond
	// memberCheckInterval is how late a dead replica may be noticed after memberExpiry.
	memberCheckInterval = 100 * time.Millisecond
	// watchStallTimeout is when a watch that is silent counts as dead: longer than one refresh may take.
	watchStallTimeout = 3 * time.Second
	// memberCooldown is how long a replica that was stopped stays away while others serve: the watches of Kubernetes that broke meanwhile
	// begin again with a step back of up to 2 s and a list.
	memberCooldown = 10 * time.Second
	// reopenTimeout bounds the beginning of a watch.
	reopenTimeout = time.Second
	// memberPutTimeout bounds one refresh; during a leader election refreshes fail and the view stays as it is.
	memberPutTimeout = 2 * time.Second
	// maxViews is how many changes of the live set are remembered; a node that was owned all along gets a new term with each
	// further one, which costs a look at the stream.
	maxViews = 16
)

// Members is the live set of cloudcores and decides which of them owns a node. Each replica refreshes its entry in a
// bucket and judges the others by the age of theirs, on its own clock. While it does not see its own refreshes, it knows
// nothing of the others either and keeps the view it had, but it is not Fresh.
//
// Ownership spreads the work and does not guard it: two replicas that own a node for a moment publish the same things, and the
// stream refuses the second. A replica that was away, stopped or cut off, for so long that others may have taken its nodes
// over, owns them afterwards in a new term.
type Members struct {
	self string
	kv   jetstream.KeyValue
	// links are our own to the hub; nil: nobody asks.
	links func() []hubLink
	log   *zap.Logger
	// failedPeers tells of replicas that stopped without a word.
	failedPeers chan failedPeer

	mu           sync.Mutex
	lastSeen     map[string]time.Time // guarded by mu; last refresh by member
	entries      map[string]string    // guarded by mu; the last value by member
	ownRefreshes []ownRefresh         // guarded by mu; the last refreshes of our own that were begun and may still count
	lastRenewal  time.Time            // guarded by mu; when the newest of our own that arrived was begun
	rejoinedAt   time.Time            // guarded by mu; when we came back last: before that we could not hear the others
	lastRunAt    time.Time            // guarded by mu; when the refreshing ran last
	resumedAt    time.Time            // guarded by mu; when it ran again after a stop, zero if it does not rest
	peerSeenAt   time.Time            // guarded by mu; when another replica was heard last
	live         []string             // guarded by mu; sorted
	views        []membershipView     // guarded by mu; the last maxViews, the present one at the end
	changed      chan struct{}        // guarded by mu; closed when views changes
}

// membershipView is who was live for a time; nobody, while this replica was away.
type membershipView struct {
	term uint64
	live []string
}

// ownRefresh is one refresh of our own entry.
type ownRefresh struct {
	value string
	at    time.Time
}

// memberEntry is what a replica writes of itself. One of an older version is a time alone.
type memberEntry struct {
	At time.Time `json:"at"`
	// Links are its connections to the hub, for who misses it.
	Links []hubLink `json:"links,omitempty"`
}

// hubLink is a client connection as the hub knows it.
type hubLink struct {
	Server string `json:"server"`
	Client uint64 `json:"client"`
}

// failedPeer is a replica that is not heard any more, though it did not say that it leaves.
type failedPeer struct {
	member string
	links  []hubLink
}

// maxFailedPeers is how many missed replicas may wait to be dealt with; more are not told of.
const maxFailedPeers = 16

// NewMembers makes the view of one replica; until Start has seen its own entry it owns nothing. links are its connections to the
// hub, which the others learn; nil for none.
func NewMembers(self string, kv jetstream.KeyValue, links func() []hubLink, log *zap.Logger) *Members {
	return &Members{
		self: self, kv: kv, links: links, log: log, failedPeers: make(chan failedPeer, maxFailedPeers),
		lastSeen: map[string]time.Time{}, entries: map[string]string{}, changed: make(chan struct{}),
	}
}

// Owns reports whether this replica is the owner of a node by the view it has.
func (m *Members) Owns(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return ownerOf(m.live, node) == m.self
}

// Term returns a number for the time since when this replica has owned a node without a break, 0 if it does not. What was
// known of the node in another term may be old.
func (m *Members) Term(node string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var term uint64
	for _, v := range slices.Backward(m.views) {
		if ownerOf(v.live, node) != m.self {
			break
		}
		term = v.term
	}
	return term
}

// LeaseValid reports whether no other replica can have missed this one yet. Ask right before each write: while the process is
// stopped, or the machine is, time goes on.
func (m *Members) LeaseValid() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return elapsedSince(m.lastRenewal, time.Now()) <= memberExpiry
}

// elapsedSince is the time since at by the clock that says more: the monotonic one stands still while a machine sleeps.
func elapsedSince(at, now time.Time) time.Duration {
	return max(now.Sub(at), now.Round(0).Sub(at.Round(0)))
}

// Changed returns a channel that closes at the next change of the live set.
func (m *Members) Changed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// Live returns the live replicas, sorted.
func (m *Members) Live() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.live)
}

// ownerOf is the member with the highest hash of (member, node): when one leaves, only its own nodes move.
func ownerOf(live []string, node string) string {
	var best string
	var most uint64
	for _, member := range live {
		h := fnv.New64a()
		_, _ = h.Write([]byte(member + "\x00" + node)) // a hash never fails
		if score := mixBits(h.Sum64()); best == "" || score > most {
			best, most = member, score
		}
	}
	return best
}

// mixBits spreads FNV's last bytes over all bits (the finaliser of MurmurHash3), else near names share an owner.
func mixBits(h uint64) uint64 {
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// Start takes part until ctx ends, then leaves at once and returns nil.
func (m *Members) Start(ctx context.Context) error {
	watcher, err := m.kv.WatchAll(ctx)
	if err != nil {
		return fmt.Errorf("watch members: %w", err)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return m.runRefresh(gctx) })
	g.Go(func() error { return m.watchPeers(gctx, watcher) })
	err = g.Wait()
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), memberPutTimeout)
	defer cancel()
	if gone := m.kv.Delete(leave, m.self); gone != nil {
		m.log.Info("members entry left to expire", zap.Error(gone))
	}
	if ctx.Err() == nil {
		return err
	}
	return nil // also where the watch was seen to end before ctx, with which it ends
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

// putEntry refreshes our own entry.
func (m *Members) putEntry(ctx context.Context) error {
	own, err := m.nextRefresh(time.Now())
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.recordRefresh(own)
	m.mu.Unlock()
	pctx, cancel := context.WithTimeout(ctx, memberPutTimeout)
	defer cancel()
	if _, err := m.kv.Put(pctx, m.self, []byte(own.value)); err != nil && ctx.Err() == nil {
		m.log.Debug("member not refreshed", zap.Error(err))
	}
	m.mu.Lock()
	m.lastRunAt = time.Now() // how long the hub takes is no stop
	m.mu.Unlock()
	return nil
}

// inCooldown reports whether this replica should stay away for a while, as it was stopped for so long that others have taken its nodes over:
// what it knows of Kubernetes is old. It rests only while one of the others is heard. Call it before each refresh.
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

// nextRefresh is our own next refresh.
func (m *Members) nextRefresh(now time.Time) (ownRefresh, error) {
	e := memberEntry{At: now.UTC()}
	if m.links != nil {
		e.Links = m.links()
	}
	value, err := json.Marshal(e)
	return ownRefresh{value: string(value), at: now}, err
}

// watchPeers hears the refreshes. A watch lives on one server of the hub and may end with it without a word; so one that has not
// brought our own refresh for watchStallTimeout is given up for a new one.
func (m *Members) watchPeers(ctx context.Context, watcher jetstream.KeyWatcher) error {
	ticker := time.NewTicker(memberCheckInterval)
	defer ticker.Stop()
	began, end := time.Now(), context.CancelFunc(func() {})
	defer func() { end() }()
	for {
		select {
		case <-ctx.Done():
			_ = watcher.Stop() // fails only when the connection is gone
			return nil
		case <-ticker.C:
			m.evaluateLive(time.Now())
			if !m.watchStalled(began) {
				continue
			}
			began = time.Now()
			next, leave, err := m.reopenWatch(ctx)
			if err != nil {
				m.log.Debug("members not watched anew", zap.Error(err))
				continue
			}
			_ = watcher.Stop() // the same
			end()
			watcher, end = next, leave
		case entry, ok := <-watcher.Updates():
			if !ok {
				return errors.New("the watch of the members ended")
			}
			switch {
			case entry == nil: // the end of the initial values; an entry of a dead replica among them counts for memberExpiry
			case entry.Operation() == jetstream.KeyValuePut:
				m.observeRefresh(entry.Key(), string(entry.Value()), time.Now())
			default:
				m.removeMember(entry.Key(), time.Now())
			}
		}
	}
}

// reopenWatch begins another watch, which lives until end. While the hub elects a leader nobody answers, and the question is lost: so
// it is given up soon, and asked again.
func (m *Members) reopenWatch(ctx context.Context) (watcher jetstream.KeyWatcher, end context.CancelFunc, err error) {
	ctx, end = context.WithCancel(ctx)
	late := time.AfterFunc(reopenTimeout, end)
	if watcher, err = m.kv.WatchAll(ctx); err == nil && !late.Stop() {
		err = context.DeadlineExceeded
		_ = watcher.Stop() // it ends with its context anyhow
	}
	if err != nil {
		end()
		return nil, nil, err
	}
	return watcher, end, nil
}

// watchStalled reports whether a watch that began at a time has been silent for too long.
func (m *Members) watchStalled(began time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, last := time.Now(), m.lastRenewal
	if !m.resumedAt.IsZero() {
		last = m.peerSeenAt // there is nothing of ours to hear
	}
	return now.Sub(began) > watchStallTimeout && elapsedSince(last, now) > watchStallTimeout
}

// observeRefresh notes a refresh that arrived.
func (m *Members) observeRefresh(member, value string, now time.Time) {
	m.mu.Lock()
	if member == m.self {
		at := slices.IndexFunc(m.ownRefreshes, func(r ownRefresh) bool { return r.value == value })
		if at < 0 {
			m.mu.Unlock()
			return // from another life, or so old that it says nothing
		}
		m.renewLease(m.ownRefreshes[at].at, now)
	} else {
		m.peerSeenAt = now
	}
	m.lastSeen[member], m.entries[member] = now, value
	known := slices.Contains(m.live, member)
	m.mu.Unlock()
	if !known {
		m.evaluateLive(now)
	}
}

// recordRefresh notes a refresh of our own; those that would count no more when they arrive are dropped. The caller holds mu.
func (m *Members) recordRefresh(own ownRefresh) {
	m.ownRefreshes = slices.DeleteFunc(m.ownRefreshes, func(r ownRefresh) bool { return elapsedSince(r.at, own.at) > memberExpiry })
	m.ownRefreshes = append(m.ownRefreshes, own)
}

// renewLease takes the arrival of our own refresh that was begun at a time. The others have heard it too, later than it began: so
// they cannot miss us before memberExpiry has passed since then. The caller holds mu.
func (m *Members) renewLease(began, now time.Time) {
	if !m.lastRenewal.IsZero() && elapsedSince(m.lastRenewal, began) > memberExpiry {
		m.log.Warn("was away from the other members", zap.Duration("took", elapsedSince(m.lastRenewal, began)))
		m.rejoinedAt = now
		m.beginView(nil)
		m.beginView(m.live)
	}
	m.lastRenewal = began
}

// removeMember takes a member away that said so itself.
func (m *Members) removeMember(member string, now time.Time) {
	m.mu.Lock()
	delete(m.lastSeen, member)
	delete(m.entries, member)
	m.mu.Unlock()
	m.evaluateLive(now)
}

// evaluateLive works out the live set, unless this replica is itself cut off.
func (m *Members) evaluateLive(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if elapsedSince(m.lastRenewal, now) > memberExpiry {
		return
	}
	var live []string
	for member, at := range m.lastSeen {
		if at.Before(m.rejoinedAt) {
			at = m.rejoinedAt // we were not there to hear it
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
	m.beginView(live)
}

// expireMember forgets a replica that stopped without a word, and tells of it. The caller holds mu.
func (m *Members) expireMember(member string) {
	var last memberEntry
	if json.Unmarshal([]byte(m.entries[member]), &last) != nil {
		last.Links = nil // of an older version
	}
	select {
	case m.failedPeers <- failedPeer{member: member, links: last.Links}:
	default:
	}
	delete(m.lastSeen, member)
	delete(m.entries, member)
}

// beginView begins a view. The caller holds mu.
func (m *Members) beginView(live []string) {
	term := uint64(1)
	if n := len(m.views); n > 0 {
		term = m.views[n-1].term + 1
	}
	m.views = append(m.views[max(0, len(m.views)+1-maxViews):], membershipView{term: term, live: live})
	close(m.changed)
	m.changed = make(chan struct{})
}
