package store

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// maxRestoreChoices limits how many records may differ between the store and its copy for every subset to be tried: 65,536 sums.
const maxRestoreChoices = 16

// lastCommit is the state of the store at its last commit.
type lastCommit struct {
	sum, names uint64
	namesKnown bool // names is valid
	cursor     wire.Cursor
}

// findLastCommit finds the state at the last commit. Its source is the high-water mark or an undamaged last message; either
// must be of the newest commit.
func (s *Store) findLastCommit(got scanResult, end uint64) (lastCommit, bool) {
	epoch := s.Cursor().StoreEpoch
	m := s.readHighWater(epoch)
	if m != nil && m.Revision >= end {
		return lastCommit{m.Sum, m.Names, true, m.Cursor}, true
	}
	if got.lastSequence != end || epoch == "" {
		return lastCommit{}, false
	}
	sum, err := strconv.ParseUint(got.sum, 16, 64)
	if err != nil {
		return lastCommit{}, false
	}
	names, err := strconv.ParseUint(got.names, 16, 64)
	return lastCommit{sum, names, err == nil, s.Cursor()}, true
}

// restoreRecords takes damaged or missing records from the copy and returns the cursor that this allows. In order of what
// can be proved:
//   - A subset of the copy's records makes the sum over all records right: these are the newest, and nothing was lost.
//   - A subset makes the sum over all names right: exactly these objects exist, but some are older than they were. They are
//     marked, with those that the store has in an even older state. The cursor goes back to the copy's, so that the hub
//     sends every later message again.
//   - Else a damaged record is replaced by the copy's only if its readable part names the same live object. The cursor
//     stays unsure: a full attach is needed.
func (s *Store) restoreRecords(got scanResult, end uint64, unsure wire.Cursor, damage []string) ([]change, wire.Cursor) {
	head, copied := s.readLastGood()
	truth, known := s.findLastCommit(got, end)
	if len(copied) > 0 && known && end > 0 && truth.cursor.StreamEpoch != "" && truth.cursor.StoreEpoch == head.Cursor.StoreEpoch {
		differ := s.diffRecords(copied)
		if list, ok := chooseSubset(differ, truth.sum-s.recordSum, func(d recordDiff) uint64 { return d.checksumDelta }); ok {
			return s.restoreChanges(list, time.Time{}, damage), truth.cursor
		}
		absent := onlyAbsent(differ)
		list, ok := chooseSubset(absent, truth.names-s.nameSum, func(d recordDiff) uint64 { return d.nameDelta })
		outdated, sure := s.listOutdated(differ, copied, head.Revision)
		if ok && sure && truth.namesKnown && head.Cursor.StreamEpoch == truth.cursor.StreamEpoch {
			cursor := truth.cursor
			cursor.Sequence = min(cursor.Sequence, head.Cursor.Sequence)
			return s.restoreChanges(slices.Concat(list, outdated), head.Saved, damage), cursor
		}
	}
	s.metrics.damaged.Inc()
	s.log.Error("store damaged, it needs a full attach", zap.Strings("damage", damage))
	var list []recordDiff
	for _, b := range got.bad {
		key, err := wire.ParseKey(strings.TrimPrefix(b.subject, objectPrefix))
		if err != nil || head.Cursor.StoreEpoch != unsure.StoreEpoch {
			continue
		}
		r := copied[key]
		if r != nil && r.state == stateLive && s.lookupRecord(key) == nil && b.header.Get(headerState) == string(stateLive) && b.header.Get(headerUID) == r.UID {
			list = append(list, recordDiff{record: r})
		}
	}
	return s.restoreChanges(list, head.Saved, nil), unsure
}

// recordDiff is a record of the copy that the store lacks or holds in another state. It holds the change that the record
// would make to the sums over all records and over all names.
type recordDiff struct {
	record, old              *record // old is the store's record, nil for none
	checksumDelta, nameDelta uint64
}

// diffRecords lists the records in which the copy differs from the store. Records that the store knows as deleted by the
// cloud stay deleted.
func (s *Store) diffRecords(copied map[wire.Key]*record) []recordDiff {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var list []recordDiff
	for key, r := range copied {
		old := s.records[key]
		if old != nil && !old.isDurable() || old.checksumTerm() == r.checksumTerm() {
			continue
		}
		list = append(list, recordDiff{r, old, r.checksumTerm() - old.checksumTerm(), r.nameTerm() - old.nameTerm()})
	}
	return list
}

func onlyAbsent(all []recordDiff) []recordDiff {
	var list []recordDiff
	for _, d := range all {
		if d.old == nil {
			list = append(list, d)
		}
	}
	return list
}

// listOutdated lists the records that the store holds in an older state than the copy, which is of a revision. A lost
// record that replaced an older one leaves no trace: the older one reappears, and the copy's cursor does not cover it. The
// result is not sure if the older record is another object than the copy's, or the copy has none.
func (s *Store) listOutdated(all []recordDiff, copied map[wire.Key]*record, revision uint64) (list []recordDiff, sure bool) {
	for _, d := range all {
		switch {
		case d.old == nil || !d.isOutdated(revision):
		case d.nameDelta != 0:
			return nil, false
		default:
			list = append(list, d)
		}
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for key, r := range s.records {
		if r.isDurable() && r.Revision <= revision && copied[key] == nil {
			return nil, false
		}
	}
	return list, true
}

// isOutdated reports whether the store's record is, or may be, older than the copy's. The hub's sequence decides. Of two
// states that the node itself wrote, the copy's was the newest at its revision.
func (d recordDiff) isOutdated(revision uint64) bool {
	if d.old.epoch != d.record.epoch {
		return true
	}
	if d.old.lastRemoteSeq != d.record.lastRemoteSeq {
		return d.old.lastRemoteSeq < d.record.lastRemoteSeq
	}
	return d.old.Revision <= revision
}

// chooseSubset finds the records of list whose parts add up to missing: all of them or, if they are few enough, any subset.
func chooseSubset(list []recordDiff, missing uint64, part func(recordDiff) uint64) ([]recordDiff, bool) {
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
	if len(list) > maxRestoreChoices {
		list = onlyAbsent(list)
	}
	if len(list) > maxRestoreChoices {
		return nil, false
	}
	for choice := range uint64(1) << len(list) {
		var sum uint64
		var chosen []recordDiff
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

// restoreChanges returns the changes that restore records; since is the copy's time for those that may be older than they were.
func (s *Store) restoreChanges(list []recordDiff, since time.Time, damage []string) []change {
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
