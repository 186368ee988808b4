package recovery

import (
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/record"
)

// maxRestoreChoices limits how many records may differ between the store and its copy for every subset to be tried: 65,536 sums.
const maxRestoreChoices = 16

// recordDiff is a record of the copy that the store lacks or holds in another state. It holds the change that the record
// would make to the sums over all records and over all names.
type recordDiff struct {
	record, old              *record.Record // old is the store's record, nil for none
	checksumDelta, nameDelta uint64
}

// diffRecords lists the records in which the copy differs from the store. Records that the store knows as deleted by the
// cloud stay deleted.
func diffRecords(copied map[wire.Key]*record.Record, lookup func(wire.Key) *record.Record) []recordDiff {
	var list []recordDiff
	for key, r := range copied {
		old := lookup(key)
		if old != nil && !old.IsDurable() || old.ChecksumTerm() == r.ChecksumTerm() {
			continue
		}
		list = append(list, recordDiff{r, old, r.ChecksumTerm() - old.ChecksumTerm(), r.NameTerm() - old.NameTerm()})
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

// isOutdated reports whether the store's record is, or may be, older than the copy's. The hub's sequence decides. Of two
// states that the node itself wrote, the copy's was the newest at its revision.
func (d recordDiff) isOutdated(revision uint64) bool {
	if d.old.StreamEpoch != d.record.StreamEpoch {
		return true
	}
	if d.old.LastRemoteSeq != d.record.LastRemoteSeq {
		return d.old.LastRemoteSeq < d.record.LastRemoteSeq
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
