package store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
)

// Sealer encrypts objects that must not be on disk as plain text. It may be called concurrently and keeps no argument.
type Sealer interface {
	// Seal returns a JSON object that hides plain and opens only with the same name, so that two sealed objects cannot be swapped.
	Seal(name string, plain []byte) ([]byte, error)
	// Open reverses Seal. current is false if Seal would now use another key.
	Open(name string, sealed []byte) (plain []byte, current bool, err error)
}

const (
	// saltSize is long enough that a checksum reveals nothing about its content.
	saltSize    = 16
	sealedValue = "yes"
)

var (
	errUnsealable = errors.New("sealed, and it cannot be opened")
	errLowSpace   = errors.New("the disk is almost full")
)

// isSecret reports whether the payload of an object is sealed.
func (s *Store) isSecret(key wire.Key) bool {
	return s.cfg.Sealer != nil && (s.cfg.IsSecret == nil || s.cfg.IsSecret(key))
}

// prepareSealing marks a live record for sealing when it is written, if its object is secret; this changes its checksum.
func (s *Store) prepareSealing(r *record) {
	if r.state != stateLive || r.salt != nil || !s.isSecret(r.Key) {
		return
	}
	r.salt = make([]byte, saltSize)
	_, _ = rand.Read(r.salt) // never fails
	r.computeChecksums()
}

// sealRecord returns the sealed payload of a record on disk. The plain text is the salt's length, the salt and the object.
func (s *Store) sealRecord(r *record) ([]byte, error) {
	plain := make([]byte, 0, 1+len(r.salt)+len(r.Object))
	plain = append(append(append(plain, byte(len(r.salt))), r.salt...), r.Object...)
	data, err := s.cfg.Sealer.Seal(r.Key.String(), plain)
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w", r.Key.Human(), err)
	}
	return data, nil
}

// unsealRecord sets a record's object from a payload.
func (s *Store) unsealRecord(r *record, sealed bool, data []byte) error {
	if !sealed {
		r.Object = bytes.Clone(data) // data may be a slice of a larger network buffer
		r.needsReseal = s.isSecret(r.Key)
		return nil
	}
	if s.cfg.Sealer == nil {
		return fmt.Errorf("%w: no key is configured", errUnsealable)
	}
	plain, current, err := s.cfg.Sealer.Open(r.Key.String(), data)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnsealable, err)
	}
	if len(plain) == 0 || len(plain) < 1+int(plain[0]) {
		return fmt.Errorf("%w: too short", errUnsealable)
	}
	n := 1 + int(plain[0])
	if n > 1 {
		r.salt = plain[1:n:n]
	}
	r.Object, r.needsReseal = plain[n:], !current
	return nil
}

// quarantineRecord returns the message that moves a record into quarantine. The bytes of a secret that came as plain text are sealed.
func (s *Store) quarantineRecord(b badRecord) (*nats.Msg, error) {
	m := quarantineMessage(b)
	key, err := wire.ParseKey(strings.TrimPrefix(b.subject, objectPrefix))
	switch sealed := b.header.Get(headerSealed); {
	case sealed != "":
		setHeader(m, headerSealed, sealed)
	case err == nil && s.isSecret(key):
		if m.Data, err = s.cfg.Sealer.Seal(m.Subject, b.data); err != nil {
			return nil, fmt.Errorf("seal %s: %w", m.Subject, err)
		}
		setHeader(m, headerSealed, sealedValue)
	}
	return m, nil
}

// resealBucket rebuilds the bucket if it holds secrets as plain text, or sealed with an older key: overwriting them would
// leave the old bytes in the files. Until the new bucket is whole the copy is the store, so that a crash in between loses
// nothing. If the disk is full or almost full, or damage is not repaired yet, the rebuild is left to the next Open.
func (s *Store) resealBucket(ctx context.Context) error {
	cursor := s.Cursor()
	if s.cfg.Sealer == nil || s.cfg.LastGoodFile == "" || s.neverPlain && s.countNeedsReseal() == 0 || cursor.StreamEpoch == "" {
		return nil
	}
	if err := s.checkSpace(); err != nil {
		s.log.Warn("secrets in the store are not sealed yet", zap.Error(err))
		return nil
	}
	worn := s.countNeedsReseal()
	head, records := s.collectRecords(func(*record) bool { return true })
	head.Sole = true
	if _, err := s.writeLastGood(head, records); err != nil {
		s.log.Warn("secrets in the store are not sealed yet", zap.Error(err))
		if s.isSoleCopy() { // the copy exists, but may be removed soon, and the bucket stays in use
			s.removeLastGood()
		}
		return nil
	}
	if err := s.rebuildSealed(ctx); err != nil {
		return err
	}
	s.log.Info("store created again, with its secrets sealed", zap.Int("objects", len(records)), zap.Int("secrets", worn))
	return nil
}

// checkSpace returns the reason why the disk has no space for a second store beside this one.
func (s *Store) checkSpace() error {
	if s.cfg.CheckWritable != nil {
		if err := s.cfg.CheckWritable(); err != nil {
			return err
		}
	}
	if s.cfg.LowSpace != nil && s.cfg.LowSpace() {
		return errLowSpace
	}
	return nil
}

// countNeedsReseal counts the records that must be sealed again.
func (s *Store) countNeedsReseal() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := 0
	for _, r := range s.records {
		if r.needsReseal {
			n++
		}
	}
	return n
}

// rebuildSealed rebuilds the bucket from memory. Meanwhile the last-good copy is the only one on disk.
func (s *Store) rebuildSealed(ctx context.Context) error {
	s.neverPlain = true
	if err := s.rebuildBucket(ctx, nil, s.Cursor()); err != nil {
		return err
	}
	head, records := s.collectRecords((*record).isDurable)
	if head.Cursor.StreamEpoch == "" { // a damaged store is never copied
		s.removeLastGood()
		return nil
	}
	if _, err := s.writeLastGood(head, records); err != nil {
		s.log.Warn("last-good copy of the store not saved after it was created again", zap.Error(err))
		s.removeLastGood()
		return nil
	}
	s.lastGoodRevision = head.Revision
	return nil
}

// resumeRebuild continues a rebuild that resealBucket has begun, and reports whether there was one. The records found in
// the bucket are then incomplete, unless the bucket is whole: resealBucket then finished, or has not removed the bucket
// yet, and a power cut brought back the copy.
func (s *Store) resumeRebuild(ctx context.Context, stream jetstream.Stream, got scanResult, end uint64) (bool, error) {
	if !s.isSoleCopy() {
		return false, nil
	}
	head, records := s.readLastGood()
	if s.isWhole(got, end, head.Cursor.StoreEpoch) {
		s.log.Warn("store is whole, removing the copy that it was created again from", zap.Uint64("revision", end), zap.Uint64("copy", head.Revision))
		s.removeLastGood()
		return false, nil
	}
	if !head.Sole && (len(records) == 0 || got.lastCursor().StoreEpoch != "") {
		return false, nil // the bucket is damaged and has not been removed
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return false, fmt.Errorf("bucket info: %w", err)
	}
	end = max(info.State.LastSeq, head.Revision)
	s.mu.Lock()
	s.cursor = head.Cursor
	for _, r := range records {
		s.applyChange(change{record: r}, end)
	}
	if !head.Sole {
		s.salvageBucket(head, got, end)
	}
	s.revision, s.events = end, eventWindow{startRevision: end}
	s.mu.Unlock()
	s.log.Warn("store was being created again, doing it again", zap.Int("objects", len(records)), zap.Bool("whole", head.Sole))
	s.recordSum, s.nameSum = s.sumRecords()
	s.dirty = false
	return true, s.rebuildSealed(ctx)
}

// salvageBucket adds the records that the bucket already holds to those that could be read from a damaged copy, and requests a full
// attach. Objects of the cloud are sent again; objects of the node are kept as far as they could be read. The caller holds mu.
func (s *Store) salvageBucket(head lastGoodHead, got scanResult, end uint64) {
	for _, c := range got.changes {
		if c.record != nil {
			s.applyChange(c.change, end)
		}
	}
	s.cursor = wire.Cursor{StoreEpoch: cmp.Or(head.Cursor.StoreEpoch, uuid.NewString())}
	s.metrics.damaged.Inc()
	s.log.Error("store was being created again from a copy that is damaged, it needs a full attach")
}

// isWhole reports whether every record of a bucket of this epoch was found, with its secrets sealed. A bucket that is being
// rebuilt is not whole: its cursor comes last.
func (s *Store) isWhole(got scanResult, end uint64, epoch string) bool {
	var sum uint64
	for _, c := range got.changes {
		sum += c.record.checksumTerm()
	}
	return got.neverPlain && epoch != "" && got.lastCursor().StoreEpoch == epoch && len(s.listDamage(got, end, epoch, sum)) == 0
}
