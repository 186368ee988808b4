// Package recovery brings the index and the bucket of a store that is being opened into agreement. It fills the index from the
// bucket, finds damage and restores what the last-good copy proves, and has a bucket with plain or outdated secrets sealed anew.
package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/store/bucket"
	"github.com/frond-edge/frond/leaf/store/index"
	"github.com/frond-edge/frond/leaf/store/journal"
	"github.com/frond-edge/frond/leaf/store/lastgood"
	"github.com/frond-edge/frond/leaf/store/record"
)

var errLowSpace = errors.New("the disk is almost full")

// Config holds the options of a recovery. The metrics are required.
type Config struct {
	// Sealed: the store seals its secrets.
	Sealed bool
	// CheckWritable returns the reason why writes are impossible now, LowSpace whether little disk space is left. The bucket is
	// then not sealed anew. nil means never.
	CheckWritable func() error
	LowSpace      func() bool
	// Damaged, Quarantined and Restored are the metrics of what was found.
	Damaged, Quarantined prometheus.Counter
	Restored             *prometheus.CounterVec
}

// Parts are the collaborators of a recovery. Nobody else may use them meanwhile.
type Parts struct {
	Bucket  *bucket.Bucket
	Index   *index.Index
	Journal *journal.Journal
	Mark    *journal.MarkFile
	Copy    *lastgood.File
}

// opening is one recovery.
type opening struct {
	Parts
	cfg Config
	log *zap.Logger
	// got is what the bucket holds.
	got bucket.Scan
}

// Open ensures the bucket and fills the index from it. Damage does not make it fail: the cursor then has no stream epoch, or
// is that of the copy from which the records were restored.
func Open(ctx context.Context, cfg Config, parts Parts, log *zap.Logger) error {
	o := &opening{Parts: parts, cfg: cfg, log: log}
	o.Copy.RemovePartial()
	stream, err := o.Bucket.Ensure(ctx)
	if err != nil {
		return err
	}
	var readErr error
	o.got, readErr = o.Bucket.Read(ctx, stream, 1)
	if resumed, err := o.resumeRebuild(ctx, stream); resumed || err != nil {
		return err
	}
	if readErr != nil {
		return readErr
	}
	o.Index.Load(o.got.Cursor(), o.got.Changes, o.got.End)
	neverPlain := cfg.Sealed && (o.got.End == 0 || o.got.NeverPlain)
	o.Journal.Adopt(neverPlain)
	if err := o.repairDamage(ctx, neverPlain); err != nil {
		return err
	}
	return o.resealBucket(ctx, neverPlain)
}

// resealBucket rebuilds the bucket if it holds secrets as plain text, or sealed with an older key: overwriting them would
// leave the old bytes in the files. Until the new bucket is whole the copy is the store, so that a crash in between loses
// nothing. If the disk is full or almost full, or damage is not repaired yet, the rebuild is left to the next Open.
func (o *opening) resealBucket(ctx context.Context, neverPlain bool) error {
	worn, _, cursor := o.Index.Select(func(r *record.Record) bool { return r.NeedsReseal })
	if !o.cfg.Sealed || !o.Copy.IsConfigured() || neverPlain && len(worn) == 0 || cursor.StreamEpoch == "" {
		return nil
	}
	if err := o.checkSpace(); err != nil {
		o.log.Warn("secrets in the store are not sealed yet", zap.Error(err))
		return nil
	}
	head, records := lastgood.Collect(o.Index, func(*record.Record) bool { return true })
	head.Sole = true
	if _, err := o.Copy.Save(head, records); err != nil {
		o.log.Warn("secrets in the store are not sealed yet", zap.Error(err))
		if o.Copy.IsSole() { // the copy exists, but may be removed soon, and the bucket stays in use
			o.Copy.Remove()
		}
		return nil
	}
	if err := o.rebuildSealed(ctx); err != nil {
		return err
	}
	o.log.Info("store created again, with its secrets sealed", zap.Int("objects", len(records)), zap.Int("secrets", len(worn)))
	return nil
}

// checkSpace returns the reason why the disk has no space for a second store beside this one.
func (o *opening) checkSpace() error {
	if o.cfg.CheckWritable != nil {
		if err := o.cfg.CheckWritable(); err != nil {
			return err
		}
	}
	if o.cfg.LowSpace != nil && o.cfg.LowSpace() {
		return errLowSpace
	}
	return nil
}

// rebuildSealed rebuilds the bucket from memory. Meanwhile the last-good copy is the only one on disk.
func (o *opening) rebuildSealed(ctx context.Context) error {
	if err := o.Journal.RebuildSealed(ctx); err != nil {
		return err
	}
	head, records := lastgood.Collect(o.Index, (*record.Record).IsDurable)
	if head.Cursor.StreamEpoch == "" { // a damaged store is never copied
		o.Copy.Remove()
		return nil
	}
	if _, err := o.Copy.Save(head, records); err != nil {
		o.log.Warn("last-good copy of the store not saved after it was created again", zap.Error(err))
		o.Copy.Remove()
	}
	return nil
}

// resumeRebuild continues a rebuild that resealBucket has begun, and reports whether there was one. The records found in
// the bucket are then incomplete, unless the bucket is whole: resealBucket then finished, or has not removed the bucket
// yet, and a power cut brought back the copy.
func (o *opening) resumeRebuild(ctx context.Context, stream jetstream.Stream) (bool, error) {
	if !o.Copy.IsSole() {
		return false, nil
	}
	head, records := o.Copy.Read()
	if o.isWhole(head.Cursor.StoreEpoch) {
		o.log.Warn("store is whole, removing the copy that it was created again from", zap.Uint64("revision", o.got.End), zap.Uint64("copy", head.Revision))
		o.Copy.Remove()
		return false, nil
	}
	if !head.Sole && (len(records) == 0 || o.got.Cursor().StoreEpoch != "") {
		return false, nil // the bucket is damaged and has not been removed
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return false, fmt.Errorf("bucket info: %w", err)
	}
	end := max(info.State.LastSeq, head.Revision)
	var changes []record.Change
	for _, r := range records {
		changes = append(changes, record.Change{Record: r, Revision: end})
	}
	if !head.Sole {
		changes = append(changes, o.salvagedChanges(end)...)
	}
	o.Index.Load(head.Cursor, changes, end)
	if !head.Sole {
		o.Index.ResetCursor(wire.Cursor{StoreEpoch: cmp.Or(head.Cursor.StoreEpoch, uuid.NewString())})
	}
	o.log.Warn("store was being created again, doing it again", zap.Int("objects", len(records)), zap.Bool("whole", head.Sole))
	o.Journal.Adopt(true)
	return true, o.rebuildSealed(ctx)
}

// salvagedChanges returns the records that the bucket already holds, to be added to those that could be read from a damaged copy.
// A full attach is needed then. Objects of the cloud are sent again; objects of the node are kept as far as they could be read.
func (o *opening) salvagedChanges(end uint64) (changes []record.Change) {
	for _, c := range o.got.Changes {
		if c.Record != nil {
			changes = append(changes, record.Change{Record: c.Record, Revision: end})
		}
	}
	o.cfg.Damaged.Inc()
	o.log.Error("store was being created again from a copy that is damaged, it needs a full attach")
	return changes
}

// isWhole reports whether every record of a bucket of this epoch was found, with its secrets sealed. A bucket that is being
// rebuilt is not whole: its cursor comes last.
func (o *opening) isWhole(epoch string) bool {
	var sum uint64
	for _, c := range o.got.Changes {
		sum += c.Record.ChecksumTerm()
	}
	return o.got.NeverPlain && epoch != "" && o.got.Cursor().StoreEpoch == epoch && len(o.listDamage(epoch, sum)) == 0
}
