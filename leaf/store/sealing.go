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

// Sealer encrypts what must not lie on the disk as it is. It may be called concurrently and keeps no argument.
type Sealer interface {
	// Seal returns a JSON object that hides plain and opens with the same name only, so that two of them cannot be swapped.
	Seal(name string, plain []byte) ([]byte, error)
	// Open undoes Seal. current is false for what Seal would do with another key by now.
	Open(name string, sealed []byte) (plain []byte, current bool, err error)
}

const (
	// saltSize makes a checksum tell nothing about what it is of.
	saltSize    = 16
	sealedValue = "yes"
)

var (
	errUnsealable = errors.New("sealed, and it cannot be opened")
	errLowSpace   = errors.New("the disk is almost full")
)

// isSecret says whether the payload of an object is sealed.
func (s *Store) isSecret(key wire.Key) bool {
	return s.cfg.Sealer != nil && (s.cfg.IsSecret == nil || s.cfg.IsSecret(key))
}

// prepareSealing makes a live record one that is sealed when it is written, if it is to be; its checksum changes with that.
func (s *Store) prepareSealing(r *record) {
	if r.state != stateLive || r.salt != nil || !s.isSecret(r.Key) {
		return
	}
	r.salt = make([]byte, saltSize)
	_, _ = rand.Read(r.salt) // it never fails
	r.computeChecksums()
}

// sealRecord is the payload of a record on disk: behind the salt's length and the salt.
func (s *Store) sealRecord(r *record) ([]byte, error) {
	plain := make([]byte, 0, 1+len(r.salt)+len(r.Object))
	plain = append(append(append(plain, byte(len(r.salt))), r.salt...), r.Object...)
	data, err := s.cfg.Sealer.Seal(r.Key.String(), plain)
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w", r.Key.Human(), err)
	}
	return data, nil
}

// unsealRecord gives a record the object that a payload holds.
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

// quarantineRecord puts a record aside. The bytes of a secret that came as plain text are sealed.
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

// resealBucket makes the bucket anew if it holds secrets as plain text, or sealed with an older key: to write over them would leave the old
// bytes in the files. Until the new bucket is whole the copy is the store, so that a crash in between loses nothing. What cannot be done now, on
// a full or almost full disk or with damage not mended yet, is left to the next opening.
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
		if s.isSoleCopy() { // it is there, but perhaps not for long, and the bucket goes on
			s.removeLastGood()
		}
		return nil
	}
	if err := s.rebuildSealed(ctx); err != nil {
		return err
	}
	s.log.Info("store made anew, with its secrets sealed", zap.Int("objects", len(records)), zap.Int("secrets", worn))
	return nil
}

// checkSpace says why the disk has no space for a second store beside this one.
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

// countNeedsReseal counts the records that are to be sealed anew.
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

// rebuildSealed makes the bucket anew from memory, of which the copy is the only record on disk meanwhile.
func (s *Store) rebuildSealed(ctx context.Context) error {
	s.neverPlain = true
	if err := s.rebuildBucket(ctx, nil, s.Cursor()); err != nil {
		return err
	}
	head, records := s.collectRecords((*record).isDurable)
	if head.Cursor.StreamEpoch == "" { // a damaged store is nobody's copy
		s.removeLastGood()
		return nil
	}
	if _, err := s.writeLastGood(head, records); err != nil {
		s.log.Warn("last-good copy of the store not saved after it was made anew", zap.Error(err))
		s.removeLastGood()
		return nil
	}
	s.lastGoodRevision = head.Revision
	return nil
}

// resumeRebuild goes on with what renew has begun, and reports whether it had. What was found in the bucket is a part of it, unless the
// bucket is whole: then renew came to its end, or has not taken the bucket away yet, and a power cut brought back the copy.
func (s *Store) resumeRebuild(ctx context.Context, stream jetstream.Stream, got scanResult, end uint64) (bool, error) {
	if !s.isSoleCopy() {
		return false, nil
	}
	head, records := s.readLastGood()
	if s.isWhole(got, end, head.Cursor.StoreEpoch) {
		s.log.Warn("store is whole, removing the copy that it was made anew from", zap.Uint64("revision", end), zap.Uint64("copy", head.Revision))
		s.removeLastGood()
		return false, nil
	}
	if !head.Sole && (len(records) == 0 || got.lastCursor().StoreEpoch != "") {
		return false, nil // damaged, and the bucket has not been taken away
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
	s.log.Warn("store was being made anew, doing it again", zap.Int("objects", len(records)), zap.Bool("whole", head.Sole))
	s.recordSum, s.nameSum = s.sumRecords()
	s.dirty = false
	return true, s.rebuildSealed(ctx)
}

// salvageBucket adds to what could be read of a damaged copy what the bucket has got already, and asks for a full attach: what the cloud gave comes
// again, what only the node had is here as far as it could be read. Called with mu held.
func (s *Store) salvageBucket(head lastGoodHead, got scanResult, end uint64) {
	for _, c := range got.changes {
		if c.record != nil {
			s.applyChange(c.change, end)
		}
	}
	s.cursor = wire.Cursor{StoreEpoch: cmp.Or(head.Cursor.StoreEpoch, uuid.NewString())}
	s.metrics.damaged.Inc()
	s.log.Error("store was being made anew from a copy that is damaged, it needs a full attach")
}

// isWhole reports whether all was found that a bucket of this epoch is to hold, with its secrets sealed. One that is being made anew is not: its
// cursor comes last.
func (s *Store) isWhole(got scanResult, end uint64, epoch string) bool {
	var sum uint64
	for _, c := range got.changes {
		sum += c.record.checksumTerm()
	}
	return got.neverPlain && epoch != "" && got.lastCursor().StoreEpoch == epoch && len(s.listDamage(got, end, epoch, sum)) == 0
}
