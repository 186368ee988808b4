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
	saltSize = 16
	isSealed = "yes"
)

var (
	errSealed = errors.New("sealed, and it cannot be opened")
	errLow    = errors.New("the disk is almost full")
)

// hides says whether the payload of an object is sealed.
func (s *Store) hides(key wire.Key) bool {
	return s.cfg.Sealer != nil && (s.cfg.Secret == nil || s.cfg.Secret(key))
}

// cover makes a live record one that is sealed when it is written, if it is to be; its checksum changes with that.
func (s *Store) cover(r *record) {
	if r.state != live || r.salt != nil || !s.hides(r.Key) {
		return
	}
	r.salt = make([]byte, saltSize)
	_, _ = rand.Read(r.salt) // it never fails
	r.stamp()
}

// sealed is the payload of a record on disk: behind the salt's length and the salt.
func (s *Store) sealed(r *record) ([]byte, error) {
	plain := make([]byte, 0, 1+len(r.salt)+len(r.Object))
	plain = append(append(append(plain, byte(len(r.salt))), r.salt...), r.Object...)
	data, err := s.cfg.Sealer.Seal(r.Key.String(), plain)
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w", r.Key.Human(), err)
	}
	return data, nil
}

// uncover gives a record the object that a payload holds.
func (s *Store) uncover(r *record, sealed bool, data []byte) error {
	if !sealed {
		r.Object = bytes.Clone(data) // data may be a slice of a larger network buffer
		r.worn = s.hides(r.Key)
		return nil
	}
	if s.cfg.Sealer == nil {
		return fmt.Errorf("%w: no key is configured", errSealed)
	}
	plain, current, err := s.cfg.Sealer.Open(r.Key.String(), data)
	if err != nil {
		return fmt.Errorf("%w: %w", errSealed, err)
	}
	if len(plain) == 0 || len(plain) < 1+int(plain[0]) {
		return fmt.Errorf("%w: too short", errSealed)
	}
	n := 1 + int(plain[0])
	if n > 1 {
		r.salt = plain[1:n:n]
	}
	r.Object, r.worn = plain[n:], !current
	return nil
}

// quarantined puts a record aside. The bytes of a secret that came as plain text are sealed.
func (s *Store) quarantined(b badRecord) (*nats.Msg, error) {
	m := quarantined(b)
	key, err := wire.ParseKey(strings.TrimPrefix(b.subject, objectPrefix))
	switch sealed := b.header.Get(headerSealed); {
	case sealed != "":
		set(m, headerSealed, sealed)
	case err == nil && s.hides(key):
		if m.Data, err = s.cfg.Sealer.Seal(m.Subject, b.data); err != nil {
			return nil, fmt.Errorf("seal %s: %w", m.Subject, err)
		}
		set(m, headerSealed, isSealed)
	}
	return m, nil
}

// renew makes the bucket anew if it holds secrets as plain text, or sealed with an older key: to write over them would leave the old
// bytes in the files. Until the new bucket is whole the copy is the store, so that a crash in between loses nothing. What cannot be done now, on
// a full or almost full disk or with damage not mended yet, is left to the next opening.
func (s *Store) renew(ctx context.Context) error {
	cursor := s.Cursor()
	if s.cfg.Sealer == nil || s.cfg.Copy == "" || s.clean && s.wornOut() == 0 || cursor.StreamEpoch == "" {
		return nil
	}
	if err := s.tight(); err != nil {
		s.log.Warn("secrets in the store are not sealed yet", zap.Error(err))
		return nil
	}
	worn := s.wornOut()
	head, records := s.snapshot(func(*record) bool { return true })
	head.Sole = true
	if _, err := s.writeCopy(head, records); err != nil {
		s.log.Warn("secrets in the store are not sealed yet", zap.Error(err))
		if s.soleCopy() { // it is there, but perhaps not for long, and the bucket goes on
			s.dropCopy()
		}
		return nil
	}
	if err := s.startOver(ctx); err != nil {
		return err
	}
	s.log.Info("store made anew, with its secrets sealed", zap.Int("objects", len(records)), zap.Int("secrets", worn))
	return nil
}

// tight says why the disk has no space for a second store beside this one.
func (s *Store) tight() error {
	if s.cfg.Refuse != nil {
		if err := s.cfg.Refuse(); err != nil {
			return err
		}
	}
	if s.cfg.Low != nil && s.cfg.Low() {
		return errLow
	}
	return nil
}

// wornOut counts the records that are to be sealed anew.
func (s *Store) wornOut() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	n := 0
	for _, r := range s.records {
		if r.worn {
			n++
		}
	}
	return n
}

// startOver makes the bucket anew from memory, of which the copy is the only record on disk meanwhile.
func (s *Store) startOver(ctx context.Context) error {
	s.clean = true
	if err := s.rebuild(ctx, nil, s.Cursor()); err != nil {
		return err
	}
	head, records := s.snapshot((*record).kept)
	if head.Cursor.StreamEpoch == "" { // a damaged store is nobody's copy
		s.dropCopy()
		return nil
	}
	if _, err := s.writeCopy(head, records); err != nil {
		s.log.Warn("last-good copy of the store not saved after it was made anew", zap.Error(err))
		s.dropCopy()
		return nil
	}
	s.copied = head.Revision
	return nil
}

// resume goes on with what renew has begun, and reports whether it had. What was found in the bucket is a part of it, unless the
// bucket is whole: then renew came to its end, or has not taken the bucket away yet, and a power cut brought back the copy.
func (s *Store) resume(ctx context.Context, stream jetstream.Stream, got found, end uint64) (bool, error) {
	if !s.soleCopy() {
		return false, nil
	}
	head, records := s.readCopy()
	if s.whole(got, end, head.Cursor.StoreEpoch) {
		s.log.Warn("store is whole, removing the copy that it was made anew from", zap.Uint64("revision", end), zap.Uint64("copy", head.Revision))
		s.dropCopy()
		return false, nil
	}
	if !head.Sole && (len(records) == 0 || got.cursor().StoreEpoch != "") {
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
		s.ingest(change{record: r}, end)
	}
	if !head.Sole {
		s.salvage(head, got, end)
	}
	s.revision, s.events = end, window{floor: end}
	s.mu.Unlock()
	s.log.Warn("store was being made anew, doing it again", zap.Int("objects", len(records)), zap.Bool("whole", head.Sole))
	s.sum, s.names = s.total()
	s.doubt = false
	return true, s.startOver(ctx)
}

// salvage adds to what could be read of a damaged copy what the bucket has got already, and asks for a full attach: what the cloud gave comes
// again, what only the node had is here as far as it could be read. Called with mu held.
func (s *Store) salvage(head copyHead, got found, end uint64) {
	for _, c := range got.changes {
		if c.record != nil {
			s.ingest(c.change, end)
		}
	}
	s.cursor = wire.Cursor{StoreEpoch: cmp.Or(head.Cursor.StoreEpoch, uuid.NewString())}
	s.metrics.damaged.Inc()
	s.log.Error("store was being made anew from a copy that is damaged, it needs a full attach")
}

// whole reports whether all was found that a bucket of this epoch is to hold, with its secrets sealed. One that is being made anew is not: its
// cursor comes last.
func (s *Store) whole(got found, end uint64, epoch string) bool {
	var sum uint64
	for _, c := range got.changes {
		sum += c.record.weight()
	}
	return got.clean && epoch != "" && got.cursor().StoreEpoch == epoch && len(s.damage(got, end, epoch, sum)) == 0
}
