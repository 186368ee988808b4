package cloud

import (
	"context"
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
	// memberPut bounds one refresh; during a leader election refreshes fail and the view stays as it is.
	memberPut = 2 * time.Second
)

// Members is the live set of cloudcores and decides which of them owns a node. Each replica refreshes its entry in a
// bucket and judges the others by the age of theirs, on its own clock. While it does not see its own refreshes, it knows
// nothing of the others either and keeps the view it had.
//
// Ownership only spreads the work: two replicas that own a node for a moment publish the same things, and the stream
// refuses the second.
type Members struct {
	self string
	kv   jetstream.KeyValue
	log  *zap.Logger

	mu      sync.Mutex
	seen    map[string]time.Time // guarded by mu; last refresh by member
	live    []string             // guarded by mu; sorted
	changed chan struct{}        // guarded by mu; closed when live changes
}

// NewMembers makes the view of one replica; until Start has seen its own entry it owns nothing.
func NewMembers(self string, kv jetstream.KeyValue, log *zap.Logger) *Members {
	return &Members{self: self, kv: kv, log: log, seen: map[string]time.Time{}, changed: make(chan struct{})}
}

// Owns reports whether this replica is the owner of a node now.
func (m *Members) Owns(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return owner(m.live, node) == m.self
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
	defer func() { _ = watcher.Stop() }() // fails only when the connection is gone
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
		pctx, cancel := context.WithTimeout(ctx, memberPut)
		_, err := m.kv.Put(pctx, m.self, []byte(time.Now().UTC().Format(time.RFC3339Nano)))
		cancel()
		if err != nil && ctx.Err() == nil {
			m.log.Debug("member not refreshed", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (m *Members) watch(ctx context.Context, watcher jetstream.KeyWatcher) error {
	ticker := time.NewTicker(memberRefresh)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			m.judge(time.Now())
		case entry, ok := <-watcher.Updates():
			if !ok {
				return errors.New("the watch of the members ended")
			}
			switch {
			case entry == nil: // the end of the initial values; an entry of a dead replica among them counts for memberDead
			case entry.Operation() == jetstream.KeyValuePut:
				m.refreshed(entry.Key(), time.Now())
			default:
				m.left(entry.Key(), time.Now())
			}
		}
	}
}

func (m *Members) refreshed(member string, now time.Time) {
	m.mu.Lock()
	m.seen[member] = now
	known := slices.Contains(m.live, member)
	m.mu.Unlock()
	if !known {
		m.judge(now)
	}
}

// left takes a member away that said so itself.
func (m *Members) left(member string, now time.Time) {
	m.mu.Lock()
	delete(m.seen, member)
	m.mu.Unlock()
	m.judge(now)
}

// judge works out the live set, unless this replica is itself cut off.
func (m *Members) judge(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.seen[m.self]) > memberDead {
		return
	}
	var live []string
	for member, at := range m.seen {
		if now.Sub(at) <= memberDead {
			live = append(live, member)
		} else {
			delete(m.seen, member)
		}
	}
	slices.Sort(live)
	if slices.Equal(live, m.live) {
		return
	}
	m.log.Info("members changed", zap.Strings("live", live))
	m.live = live
	close(m.changed)
	m.changed = make(chan struct{})
}
