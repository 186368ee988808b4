package store

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// most is how many records may differ between the store and its copy for every choice among them to be tried: 65,536 sums.
const most = 16

// truth is what the store was at its last commit.
type truth struct {
	sum, names uint64
	named      bool // names is known
	cursor     wire.Cursor
}

// truth finds out what the store was. The mark tells, or a last message that is whole; either must be of the newest commit.
func (s *Store) truth(got found, end uint64) (truth, bool) {
	epoch := s.Cursor().StoreEpoch
	m := s.readMark(epoch)
	if m != nil && m.Revision >= end {
		return truth{m.Sum, m.Names, true, m.Cursor}, true
	}
	if got.last != end || epoch == "" {
		return truth{}, false
	}
	sum, err := strconv.ParseUint(got.sum, 16, 64)
	if err != nil {
		return truth{}, false
	}
	names, err := strconv.ParseUint(got.names, 16, 64)
	return truth{sum, names, err == nil, s.Cursor()}, true
}

// restore takes from the copy what is damaged or missing, and returns the cursor that this allows. In order of what can be proved:
//   - Some of the copy's records make the sum over all records right: these are the newest, and nothing was lost.
//   - Some make the sum over all names right: nothing but these objects exists, but some are older than they were. They are
//     marked, with those that the store has in a state older still, and the cursor goes back to the copy's, so that the hub
//     sends what came after it once more.
//   - Else a damaged record is replaced by the copy's only if what is left of it names the same live object, and the cursor
//     stays unsure: a full attach is needed.
func (s *Store) restore(got found, end uint64, unsure wire.Cursor, damage []string) ([]change, wire.Cursor) {
	head, copied := s.readCopy()
	truth, known := s.truth(got, end)
	if len(copied) > 0 && known && end > 0 && truth.cursor.StreamEpoch != "" && truth.cursor.StoreEpoch == head.Cursor.StoreEpoch {
		differ := s.differing(copied)
		if list, ok := choose(differ, truth.sum-s.sum, func(d difference) uint64 { return d.weight }); ok {
			return s.restored(list, time.Time{}, damage), truth.cursor
		}
		absent := onlyAbsent(differ)
		list, ok := choose(absent, truth.names-s.names, func(d difference) uint64 { return d.name })
		outdated, sure := s.outdated(differ, copied, head.Revision)
		if ok && sure && truth.named && head.Cursor.StreamEpoch == truth.cursor.StreamEpoch {
			cursor := truth.cursor
			cursor.Sequence = min(cursor.Sequence, head.Cursor.Sequence)
			return s.restored(slices.Concat(list, outdated), head.Saved, damage), cursor
		}
	}
	s.metrics.damaged.Inc()
	s.log.Error("store damaged, it needs a full attach", zap.Strings("damage", damage))
	var list []difference
	for _, b := range got.bad {
		key, err := wire.ParseKey(strings.TrimPrefix(b.subject, objectPrefix))
		if err != nil || head.Cursor.StoreEpoch != unsure.StoreEpoch {
			continue
		}
		r := copied[key]
		if r != nil && r.state == live && s.record(key) == nil && b.header.Get(headerState) == string(live) && b.header.Get(headerUID) == r.UID {
			list = append(list, difference{record: r})
		}
	}
	return s.restored(list, head.Saved, nil), unsure
}

// difference is a record of the copy that the store has not, or not so, and what the sums over all records and over all
// names would gain by it.
type difference struct {
	record, old  *record // old is the store's, nil for none
	weight, name uint64
}

// differing lists what the copy has otherwise than the store. What the store knows to be deleted by the cloud stays so.
func (s *Store) differing(copied map[wire.Key]*record) []difference {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var list []difference
	for key, r := range copied {
		old := s.records[key]
		if old != nil && !old.kept() || old.weight() == r.weight() {
			continue
		}
		list = append(list, difference{r, old, r.weight() - old.weight(), r.name() - old.name()})
	}
	return list
}

func onlyAbsent(all []difference) []difference {
	var list []difference
	for _, d := range all {
		if d.old == nil {
			list = append(list, d)
		}
	}
	return list
}

// outdated lists what the store has in an older state than the copy, which is of a revision. A record that takes an older
// one's place leaves no trace when it is lost: the older one is there again, and the copy's cursor does not speak for it. It
// is not sure if the older one is not the object that the copy has, or the copy has none.
func (s *Store) outdated(all []difference, copied map[wire.Key]*record, revision uint64) (list []difference, sure bool) {
	for _, d := range all {
		switch {
		case d.old == nil || !d.outdated(revision):
		case d.name != 0:
			return nil, false
		default:
			list = append(list, d)
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key, r := range s.records {
		if r.kept() && r.Revision <= revision && copied[key] == nil {
			return nil, false
		}
	}
	return list, true
}

// outdated reports whether the store's record is from before the copy's, or may be. The hub's sequence tells; between two
// states of the node's own making it is the copy's that was the newest at its revision.
func (d difference) outdated(revision uint64) bool {
	if d.old.epoch != d.record.epoch {
		return true
	}
	if d.old.floor != d.record.floor {
		return d.old.floor < d.record.floor
	}
	return d.old.Revision <= revision
}

// choose finds those of list whose parts sum up to missing: all, or with few enough any of them.
func choose(list []difference, missing uint64, part func(difference) uint64) ([]difference, bool) {
	var all uint64
	for _, d := range list {
		all += part(d)
	}
	if all == missing {
		return list, true
	}
	if missing == 0 {
		return nil, true
	}
	if len(list) > most {
		list = onlyAbsent(list)
	}
	if len(list) > most {
		return nil, false
	}
	for choice := range uint64(1) << len(list) {
		var sum uint64
		var chosen []difference
		for i, d := range list {
			if choice>>i&1 == 1 {
				sum += part(d)
				chosen = append(chosen, d)
			}
		}
		if sum == missing {
			return chosen, true
		}
	}
	return nil, false
}

// restored makes the changes that bring records back; since is the copy's time for those that may be older than they were.
func (s *Store) restored(list []difference, since time.Time, damage []string) []change {
	version, names := "newest", make([]string, 0, len(list))
	if !since.IsZero() {
		version = "older"
	}
	changes := make([]change, 0, len(list))
	for _, d := range list {
		r := *d.record
		if !since.IsZero() {
			r.LastGood = since
		}
		changes = append(changes, change{record: &r})
		names = append(names, r.Key.Human()+" at "+r.Version)
	}
	if len(damage) > 0 || len(list) > 0 {
		s.metrics.restored.WithLabelValues(version).Add(float64(len(list)))
		s.log.Warn("store damaged, records taken from the last-good copy", zap.String("version", version), zap.Time("copy", since),
			zap.Strings("objects", names), zap.Strings("damage", damage))
	}
	return changes
}
