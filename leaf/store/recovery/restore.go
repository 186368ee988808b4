package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/bucket"
	"github.com/frond-edge/frond/leaf/store/record"
)

// repairDamage moves bad records into quarantine. It clears the cursor if an object or the cursor itself was damaged or is missing.
// Unless neverPlain, the cursor's own record no longer says that the bucket has never held a secret as plain text.
func (o *opening) repairDamage(ctx context.Context, neverPlain bool) error {
	cursor := o.Index.Cursor()
	sum, _ := o.Journal.Sums()
	damage := o.listDamage(cursor.StoreEpoch, sum)
	var changes []record.Change
	if len(damage) > 0 {
		// The cursor is cleared first, so that a crash in between leaves a store that claims no completeness.
		unsure := wire.Cursor{StoreEpoch: cmp.Or(cursor.StoreEpoch, uuid.NewString())}
		changes = append(changes, record.Change{Cursor: &unsure})
		cursor = unsure
	}
	for _, b := range o.got.Bad {
		o.cfg.Quarantined.Inc()
		if b.Data == nil {
			continue
		}
		kept, err := o.Bucket.Codec.Quarantine(b)
		if err != nil {
			return err
		}
		changes = append(changes, kept, bucket.Void(b))
	}
	if len(damage) > 0 {
		var restored []record.Change
		restored, cursor = o.restoreRecords(cursor, damage)
		changes = append(changes, restored...)
	}
	if cursor.StoreEpoch == "" {
		cursor.StoreEpoch = uuid.NewString()
	}
	if o.got.Unreadable {
		return o.Journal.ReplaceDamaged(ctx, changes, cursor)
	}
	if len(changes) > 0 || cursor != o.Index.Cursor() || o.got.NeverPlain && !neverPlain {
		changes = append(changes, record.Change{Cursor: &cursor})
	}
	err := o.Journal.CommitAll(ctx, changes)
	if errors.Is(err, bucket.ErrForeignWrite) {
		// No other writer is active now: the server's own index is wrong, so that it refuses each write.
		return o.Journal.ReplaceDamaged(ctx, changes, cursor)
	}
	return err
}

// listDamage lists the evidence that records were lost or changed; it is empty for a new or whole store. epoch and total
// are those of the records found.
func (o *opening) listDamage(epoch string, total uint64) []string {
	var list []string
	for _, b := range o.got.Bad {
		if b.IsDamage() {
			list = append(list, fmt.Sprintf("%s: %v", b.Subject, b.Reason))
		}
	}
	if o.got.End == 0 {
		return list
	}
	marked := uint64(0)
	if epoch != "" {
		if m := o.Mark.Read(epoch); m != nil {
			marked = m.Revision
		}
	}
	switch want := strconv.FormatUint(total, 16); {
	case epoch == "":
		list = append(list, "no cursor")
	case o.got.LastSequence != o.got.End:
		list = append(list, fmt.Sprintf("last record is %d, the bucket had %d", o.got.LastSequence, o.got.End))
	case o.got.Sum != want:
		list = append(list, fmt.Sprintf("sum of the records is %s, the last one says %s", want, o.got.Sum))
	case o.got.End < marked:
		list = append(list, fmt.Sprintf("the bucket ends at %d, but %d was acked", o.got.End, marked))
	}
	return list
}

// lastCommit is the state of the store at its last commit.
type lastCommit struct {
	sum, names uint64
	namesKnown bool // names is valid
	cursor     wire.Cursor
}

// findLastCommit finds the state at the last commit. Its source is the high-water mark or an undamaged last message; either
// must be of the newest commit.
func (o *opening) findLastCommit() (lastCommit, bool) {
	epoch := o.Index.Cursor().StoreEpoch
	m := o.Mark.Read(epoch)
	if m != nil && m.Revision >= o.got.End {
		return lastCommit{m.Sum, m.Names, true, m.Cursor}, true
	}
	if o.got.LastSequence != o.got.End || epoch == "" {
		return lastCommit{}, false
	}
	sum, err := strconv.ParseUint(o.got.Sum, 16, 64)
	if err != nil {
		return lastCommit{}, false
	}
	names, err := strconv.ParseUint(o.got.Names, 16, 64)
	return lastCommit{sum, names, err == nil, o.Index.Cursor()}, true
}

// restoreRecords takes damaged or missing records from the copy and returns the cursor that this allows. In order of what
// can be proved:
//   - A subset of the copy's records makes the sum over all records right: these are the newest, and nothing was lost.
//   - A subset makes the sum over all names right: exactly these objects exist, but some are older than they were. They are
//     marked, with those that the store has in an even older state. The cursor goes back to the copy's, so that the hub
//     sends every later message again.
//   - Else a damaged record is replaced by the copy's only if its readable part names the same live object. The cursor
//     stays unsure: a full attach is needed.
func (o *opening) restoreRecords(unsure wire.Cursor, damage []string) ([]record.Change, wire.Cursor) {
	head, copied := o.Copy.Read()
	truth, known := o.findLastCommit()
	if len(copied) > 0 && known && o.got.End > 0 && truth.cursor.StreamEpoch != "" && truth.cursor.StoreEpoch == head.Cursor.StoreEpoch {
		sum, names := o.Journal.Sums()
		differ := diffRecords(copied, o.Index.Lookup)
		if list, ok := chooseSubset(differ, truth.sum-sum, func(d recordDiff) uint64 { return d.checksumDelta }); ok {
			return o.restoreChanges(list, time.Time{}, damage), truth.cursor
		}
		absent := onlyAbsent(differ)
		list, ok := chooseSubset(absent, truth.names-names, func(d recordDiff) uint64 { return d.nameDelta })
		outdated, sure := o.listOutdated(differ, copied, head.Revision)
		if ok && sure && truth.namesKnown && head.Cursor.StreamEpoch == truth.cursor.StreamEpoch {
			cursor := truth.cursor
			cursor.Sequence = min(cursor.Sequence, head.Cursor.Sequence)
			return o.restoreChanges(slices.Concat(list, outdated), head.Saved, damage), cursor
		}
	}
	o.cfg.Damaged.Inc()
	o.log.Error("store damaged, it needs a full attach", zap.Strings("damage", damage))
	var list []recordDiff
	for _, b := range o.got.Bad {
		key, err := b.Key()
		if err != nil || head.Cursor.StoreEpoch != unsure.StoreEpoch {
			continue
		}
		if r := copied[key]; r != nil && o.Index.Lookup(key) == nil && b.IsState(r) {
			list = append(list, recordDiff{record: r})
		}
	}
	return o.restoreChanges(list, head.Saved, nil), unsure
}

// listOutdated lists the records that the store holds in an older state than the copy, which is of a revision. A lost
// record that replaced an older one leaves no trace: the older one reappears, and the copy's cursor does not cover it. The
// result is not sure if the older record is another object than the copy's, or the copy has none.
func (o *opening) listOutdated(all []recordDiff, copied map[wire.Key]*record.Record, revision uint64) (list []recordDiff, sure bool) {
	for _, d := range all {
		switch {
		case d.old == nil || !d.isOutdated(revision):
		case d.nameDelta != 0:
			return nil, false
		default:
			list = append(list, d)
		}
	}
	lacking, _, _ := o.Index.Select(func(r *record.Record) bool { return r.IsDurable() && r.Revision <= revision && copied[r.Key] == nil })
	if len(lacking) > 0 {
		return nil, false
	}
	return list, true
}

// restoreChanges returns the changes that restore records; since is the copy's time for those that may be older than they were.
func (o *opening) restoreChanges(list []recordDiff, since time.Time, damage []string) []record.Change {
	version, names := "newest", make([]string, 0, len(list))
	if !since.IsZero() {
		version = "older"
	}
	changes := make([]record.Change, 0, len(list))
	for _, d := range list {
		r := *d.record
		if !since.IsZero() {
			r.LastGood = since
		}
		changes = append(changes, record.Change{Record: &r})
		names = append(names, r.Key.Human()+" at "+r.Version)
	}
	if len(damage) > 0 || len(list) > 0 {
		o.cfg.Restored.WithLabelValues(version).Add(float64(len(list)))
		o.log.Warn("store damaged, records taken from the last-good copy", zap.String("version", version), zap.Time("copy", since),
			zap.Strings("objects", names), zap.Strings("damage", damage))
	}
	return changes
}
