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
	// memberRefresh and memberDead give a takeover within 2 s: a dead replica is missed after 1.5 s.
	memberRefresh = 400 * time.Millisecond
	memberDead    = 1500 * time.Millisecond
	// memberJudge is how late a dead replica may be noticed after memberDead.
	memberJudge = 100 * time.Millisecond
	// watchPatience is when a watch that is silent counts as dead: longer than one refresh may take.
	watchPatience = 3 * time.Second
	// memberRest is how long a replica that was stopped stays away while others serve: the watches of Kubernetes that broke meanwhile
	// begin again with a step back of up to 2 s and a list.
	memberRest = 10 * time.Second
	// watchAgain bounds the beginning of a watch.
	watchAgain = time.Second
	// memberPut bounds one refresh; during a leader election refreshes fail and the view stays as it is.
	memberPut = 2 * time.Second
	// memberViews is how many changes of the live set are remembered; a node that was owned all along gets a new term with each
	// further one, which costs a look at the stream.
	memberViews = 16
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
	// missed tells of replicas that stopped without a word.
	missed chan missed

	mu      sync.Mutex
	seen    map[string]time.Time // guarded by mu; last refresh by member
	entries map[string]string    // guarded by mu; the last value by member
	own     []refresh            // guarded by mu; the last refreshes of our own that were begun and may still count
	heard   time.Time            // guarded by mu; when the newest of our own that arrived was begun
	back    time.Time            // guarded by mu; when we came back last: before that we could not hear the others
	ran     time.Time            // guarded by mu; when the refreshing ran last
	woke    time.Time            // guarded by mu; when it ran again after a stop, zero if it does not rest
	other   time.Time            // guarded by mu; when another replica was heard last
	live    []string             // guarded by mu; sorted
	views   []view               // guarded by mu; the last memberViews, the present one at the end
	changed chan struct{}        // guarded by mu; closed when views changes
}

// view is who was live for a time; nobody, while this replica was away.
type view struct {
	term uint64
	live []string
}

// refresh is one refresh of our own entry.
type refresh struct {
	value string
	at    time.Time
}

// entry is what a replica writes of itself. One of an older version is a time alone.
type entry struct {
	At time.Time `json:"at"`
	// Links are its connections to the hub, for who misses it.
	Links []hubLink `json:"links,omitempty"`
}

// hubLink is a client connection as the hub knows it.
type hubLink struct {
	Server string `json:"server"`
	Client uint64 `json:"client"`
}

// missed is a replica that is not heard any more, though it did not say that it leaves.
type missed struct {
	member string
	links  []hubLink
}

// missedKept is how many missed replicas may wait to be dealt with; more are not told of.
const missedKept = 16

// NewMembers makes the view of one replica; until Start has seen its own entry it owns nothing. links are its connections to the
// hub, which the others learn; nil for none.
func NewMembers(self string, kv jetstream.KeyValue, links func() []hubLink, log *zap.Logger) *Members {
	return &Members{
		self: self, kv: kv, links: links, log: log, missed: make(chan missed, missedKept),
		seen: map[string]time.Time{}, entries: map[string]string{}, changed: make(chan struct{}),
	}
}

// Owns reports whether this replica is the owner of a node by the view it has.
func (m *Members) Owns(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return owner(m.live, node) == m.self
}

// Term returns a number for the time since when this replica has owned a node without a break, 0 if it does not. What was
// known of the node in another term may be old.
func (m *Members) Term(node string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	var term uint64
	for _, v := range slices.Backward(m.views) {
		if owner(v.live, node) != m.self {
			break
		}
		term = v.term
	}
	return term
}

// Fresh reports whether no other replica can have missed this one yet. Ask right before each write: while the process is
// stopped, or the machine is, time goes on.
func (m *Members) Fresh() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return age(m.heard, time.Now()) <= memberDead
}

// age is the time since at by the clock that says more: the monotonic one stands still while a machine sleeps.
func age(at, now time.Time) time.Duration { return max(now.Sub(at), now.Round(0).Sub(at.Round(0))) }

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

// owner is the member with the highest hash of (member, node): when one leaves, only its own nodes move.
func owner(live []string, node string) string {
	var best string
	var most uint64
	for _, member := range live {
		h := fnv.New64a()
		_, _ = h.Write([]byte(member + "\x00" + node)) // a hash never fails
		if score := mix(h.Sum64()); best == "" || score > most {
			best, most = member, score
		}
	}
	return best
}

// mix spreads FNV's last bytes over all bits (the finaliser of MurmurHash3), else near names share an owner.
func mix(h uint64) uint64 {
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
	g.Go(func() error { return m.refresh(gctx) })
	g.Go(func() error { return m.watch(gctx, watcher) })
	err = g.Wait()
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), memberPut)
	defer cancel()
	if gone := m.kv.Delete(leave, m.self); gone != nil {
		m.log.Info("members entry left to expire", zap.Error(gone))
	}
	if ctx.Err() == nil {
		return err
	}
	return nil // also where the watch was seen to end before ctx, with which it ends
}

func (m *Members) refresh(ctx context.Context) error {
	ticker := time.NewTicker(memberRefresh)
	defer ticker.Stop()
	for {
		if !m.rests(time.Now()) {
			if err := m.put(ctx); err != nil {
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

// put refreshes our own entry.
func (m *Members) put(ctx context.Context) error {
	own, err := m.next(time.Now())
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.begin(own)
	m.mu.Unlock()
	pctx, cancel := context.WithTimeout(ctx, memberPut)
	defer cancel()
	if _, err := m.kv.Put(pctx, m.self, []byte(own.value)); err != nil && ctx.Err() == nil {
		m.log.Debug("member not refreshed", zap.Error(err))
	}
	m.mu.Lock()
	m.ran = time.Now() // how long the hub takes is no stop
	m.mu.Unlock()
	return nil
}

// rests reports whether this replica should stay away for a while, as it was stopped for so long that others have taken its nodes over:
// what it knows of Kubernetes is old. It rests only while one of the others is heard. Call it before each refresh.
func (m *Members) rests(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.ran.IsZero() && age(m.ran, now) > memberDead && len(m.live) > 1 {
		m.log.Warn("was stopped, and rests while others serve", zap.Duration("took", age(m.ran, now)))
		m.woke = now
	}
	m.ran = now
	if m.woke.IsZero() {
		return false
	}
	last := m.woke
	if m.other.After(last) {
		last = m.other
	}
	if age(last, now) > memberDead || age(m.woke, now) >= memberRest {
		m.woke = time.Time{}
	}
	return !m.woke.IsZero()
}

// next is our own next refresh.
func (m *Members) next(now time.Time) (refresh, error) {
	e := entry{At: now.UTC()}
	if m.links != nil {
		e.Links = m.links()
	}
	value, err := json.Marshal(e)
	return refresh{value: string(value), at: now}, err
}

// watch hears the refreshes. A watch lives on one server of the hub and may end with it without a word; so one that has not
// brought our own refresh for watchPatience is given up for a new one.
func (m *Members) watch(ctx context.Context, watcher jetstream.KeyWatcher) error {
	ticker := time.NewTicker(memberJudge)
	defer ticker.Stop()
	began, end := time.Now(), context.CancelFunc(func() {})
	defer func() { end() }()
	for {
		select {
		case <-ctx.Done():
			_ = watcher.Stop() // fails only when the connection is gone
			return nil
		case <-ticker.C:
			m.judge(time.Now())
			if !m.deaf(began) {
				continue
			}
			began = time.Now()
			next, leave, err := m.watchAnew(ctx)
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
			case entry == nil: // the end of the initial values; an entry of a dead replica among them counts for memberDead
			case entry.Operation() == jetstream.KeyValuePut:
				m.refreshed(entry.Key(), string(entry.Value()), time.Now())
			default:
				m.left(entry.Key(), time.Now())
			}
		}
	}
}

// watchAnew begins another watch, which lives until end. While the hub elects a leader nobody answers, and the question is lost: so
// it is given up soon, and asked again.
func (m *Members) watchAnew(ctx context.Context) (watcher jetstream.KeyWatcher, end context.CancelFunc, err error) {
	ctx, end = context.WithCancel(ctx)
	late := time.AfterFunc(watchAgain, end)
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

// deaf reports whether a watch that began at a time has been silent for too long.
func (m *Members) deaf(began time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, last := time.Now(), m.heard
	if !m.woke.IsZero() {
		last = m.other // there is nothing of ours to hear
	}
	return now.Sub(began) > watchPatience && age(last, now) > watchPatience
}

// refreshed notes a refresh that arrived.
func (m *Members) refreshed(member, value string, now time.Time) {
	m.mu.Lock()
	if member == m.self {
		at := slices.IndexFunc(m.own, func(r refresh) bool { return r.value == value })
		if at < 0 {
			m.mu.Unlock()
			return // from another life, or so old that it says nothing
		}
		m.hear(m.own[at].at, now)
	} else {
		m.other = now
	}
	m.seen[member], m.entries[member] = now, value
	known := slices.Contains(m.live, member)
	m.mu.Unlock()
	if !known {
		m.judge(now)
	}
}

// begin notes a refresh of our own; those that would count no more when they arrive are dropped. The caller holds mu.
func (m *Members) begin(own refresh) {
	m.own = slices.DeleteFunc(m.own, func(r refresh) bool { return age(r.at, own.at) > memberDead })
	m.own = append(m.own, own)
}

// hear takes the arrival of our own refresh that was begun at a time. The others have heard it too, later than it began: so
// they cannot miss us before memberDead has passed since then. The caller holds mu.
func (m *Members) hear(began, now time.Time) {
	if !m.heard.IsZero() && age(m.heard, began) > memberDead {
		m.log.Warn("was away from the other members", zap.Duration("took", age(m.heard, began)))
		m.back = now
		m.turn(nil)
		m.turn(m.live)
	}
	m.heard = began
}

// left takes a member away that said so itself.
func (m *Members) left(member string, now time.Time) {
	m.mu.Lock()
	delete(m.seen, member)
	delete(m.entries, member)
	m.mu.Unlock()
	m.judge(now)
}

// judge works out the live set, unless this replica is itself cut off.
func (m *Members) judge(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if age(m.heard, now) > memberDead {
		return
	}
	var live []string
	for member, at := range m.seen {
		if at.Before(m.back) {
			at = m.back // we were not there to hear it
		}
		if now.Sub(at) <= memberDead {
			live = append(live, member)
		} else {
			m.miss(member)
		}
	}
	slices.Sort(live)
	if slices.Equal(live, m.live) {
		return
	}
	m.log.Info("members changed", zap.Strings("live", live))
	m.live = live
	m.turn(live)
}

// miss forgets a replica that stopped without a word, and tells of it. The caller holds mu.
func (m *Members) miss(member string) {
	var last entry
	if json.Unmarshal([]byte(m.entries[member]), &last) != nil {
		last.Links = nil // of an older version
	}
	select {
	case m.missed <- missed{member: member, links: last.Links}:
	default:
	}
	delete(m.seen, member)
	delete(m.entries, member)
}

// turn begins a view. The caller holds mu.
func (m *Members) turn(live []string) {
	term := uint64(1)
	if n := len(m.views); n > 0 {
		term = m.views[n-1].term + 1
	}
	m.views = append(m.views[max(0, len(m.views)+1-memberViews):], view{term: term, live: live})
	close(m.changed)
	m.changed = make(chan struct{})
}
