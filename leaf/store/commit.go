package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
)

const (
	// maxPipelined is the largest number of messages that are published one by one, each with its own sync. An atomic batch has
	// one sync in all, but creates, syncs and removes a folder: for 16 messages both take the same time (bench_test.go).
	maxPipelined = 16
	// maxCommitAttempts is how often a write is planned again after another writer committed first.
	maxCommitAttempts = 3
)

// Headers of nats-server: the expected last sequence, and the atomic batch (ADR-50).
const (
	headerExpected    = jetstream.ExpectedLastSeqHeader
	headerBatch       = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"
)

// errForeignWrite reports that the bucket holds a write that this store did not make or has not read.
var errForeignWrite = errors.New("another writer changed the bucket")

// change is one message of a commit: a record, a cursor, or raw bytes for quarantine.
type change struct {
	record *record
	cursor *wire.Cursor
	raw    *nats.Msg
}

// planAndCommit runs decide with the writer token and commits the changes that it returns. decide sees memory equal to the
// bucket. It may be called again if another writer committed first.
func (s *Store) planAndCommit(ctx context.Context, decide func() ([]change, error)) error {
	if err := acquireToken(ctx, s.writer); err != nil {
		return err
	}
	defer releaseToken(s.writer)
	if s.cfg.CheckWritable != nil {
		if err := s.cfg.CheckWritable(); err != nil {
			return fmt.Errorf("%w: %w", ErrFull, err)
		}
	}
	for attempt := 1; ; attempt++ {
		if s.dirty {
			if err := s.catchUp(ctx); err != nil {
				return fmt.Errorf("catch up with the bucket: %w", err)
			}
		}
		changes, err := decide()
		if err != nil || len(changes) == 0 {
			return err
		}
		err = s.commit(ctx, changes)
		if !errors.Is(err, errForeignWrite) || attempt == maxCommitAttempts {
			return err
		}
		s.log.Warn("bucket changed by another writer, reading it again", zap.Int("attempt", attempt))
	}
}

func acquireToken(ctx context.Context, token chan struct{}) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case token <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func releaseToken(token chan struct{}) { <-token }

// commit writes changes in order, waits until they are synced, and applies them for readers. The caller holds writer.
// Cancelling ctx does not interrupt a commit: once it has started, commit waits for its outcome.
func (s *Store) commit(ctx context.Context, changes []change) error {
	if last := changes[len(changes)-1]; last.record != nil && last.record.state == stateTombstone || last.raw != nil {
		// The last message of a commit carries the sums, which prove that no earlier record was lost. It must not expire.
		cursor := s.Cursor()
		changes = append(changes, change{cursor: &cursor})
	}
	messages, sum, names, err := s.encodeCommit(changes)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.SyncTimeout)
	defer cancel()
	base, begun := s.Revision(), time.Now()
	s.dirty = true
	failpoint.At("save.begun")
	if err := mapServerError(s.publishInOrder(ctx, base, messages)); err != nil {
		s.sequenceRefused = errors.Is(err, errForeignWrite)
		s.suspectKeys = s.suspectKeys[:0]
		for _, c := range changes {
			if c.record != nil {
				s.suspectKeys = append(s.suspectKeys, c.record.Key)
			}
		}
		return fmt.Errorf("write to the bucket: %w", err)
	}
	failpoint.At("save.synced")
	s.dirty, s.sequenceRefused, s.suspectKeys = false, false, nil
	s.recordSum, s.nameSum = sum, names
	s.metrics.syncSeconds.Observe(time.Since(begun).Seconds())

	s.mu.Lock()
	for i, c := range changes {
		s.applyChange(c, base+uint64(i)+1)
	}
	s.mu.Unlock()
	s.saveHighWater(base + uint64(len(changes)))
	return nil
}

// encodeCommit returns the messages of a commit, and the two sums after it.
func (s *Store) encodeCommit(changes []change) (messages []*nats.Msg, sum, names uint64, err error) {
	sum, names = s.recordSum, s.nameSum
	messages = make([]*nats.Msg, 0, len(changes))
	earlier := map[wire.Key]*record{}
	for _, c := range changes {
		m := c.raw
		switch {
		case c.cursor != nil:
			if m, err = encodeCursor(*c.cursor); err != nil {
				return nil, 0, 0, err
			}
			if s.neverPlain {
				setHeader(m, headerSealed, sealedValue)
			}
		case c.record != nil:
			if m, err = s.encodeRecord(c.record); err != nil {
				return nil, 0, 0, err
			}
			old, ok := earlier[c.record.Key]
			if !ok {
				old = s.lookupRecord(c.record.Key)
			}
			sum += c.record.checksumTerm() - old.checksumTerm()
			names += c.record.nameTerm() - old.nameTerm()
			earlier[c.record.Key] = c.record
		}
		setHeader(m, headerSum, strconv.FormatUint(sum, 16))
		setHeader(m, headerNames, strconv.FormatUint(names, 16))
		messages = append(messages, m)
	}
	return messages, sum, names, nil
}

// publishInOrder publishes messages so that they get the sequences after base, in order. After a refused message none is stored.
func (s *Store) publishInOrder(ctx context.Context, base uint64, messages []*nats.Msg) error {
	expect := func(m *nats.Msg, last uint64) { m.Header.Set(headerExpected, strconv.FormatUint(last, 10)) }
	want := base + uint64(len(messages))
	if len(messages) > maxPipelined {
		expect(messages[0], base)
		return s.publishBatch(ctx, want, messages)
	}
	acks := make([]jetstream.PubAckFuture, 0, len(messages))
	for i, m := range messages {
		expect(m, base+uint64(i))
		ack, err := s.js.PublishMsgAsync(m)
		if err != nil {
			return err
		}
		failpoint.At("save.sent")
		acks = append(acks, ack)
	}
	var last uint64
	for _, ack := range acks {
		select {
		case a := <-ack.Ok():
			last = a.Sequence
		case err := <-ack.Err():
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return checkSequence(last, want)
}

func checkSequence(got, want uint64) error {
	if got != want {
		return fmt.Errorf("%w: stored at %d, expected %d", errForeignWrite, got, want)
	}
	return nil
}

func (s *Store) publishBatch(ctx context.Context, want uint64, messages []*nats.Msg) error {
	id := uuid.NewString()
	last := len(messages) - 1
	for i, m := range messages {
		m.Header.Set(headerBatch, id)
		m.Header.Set(headerBatchSeq, strconv.Itoa(i+1))
		if i == last {
			m.Header.Set(headerBatchCommit, "1")
			continue
		}
		if err := s.js.Conn().PublishMsg(m); err != nil {
			return err
		}
		failpoint.At("save.batched")
	}
	ack, err := s.js.PublishMsg(ctx, messages[last])
	if err != nil {
		return err
	}
	return checkSequence(ack.Sequence, want)
}

// Error codes of nats-server (server/errors.json).
const (
	codeStoreFailed   jetstream.ErrorCode = 10077
	codeNoResources   jetstream.ErrorCode = 10047
	codeNoStorage     jetstream.ErrorCode = 10023
	codeWrongSequence jetstream.ErrorCode = 10071
)

func mapServerError(err error) error {
	var api *jetstream.APIError
	if !errors.As(err, &api) {
		return err
	}
	switch api.ErrorCode {
	case codeWrongSequence:
		return fmt.Errorf("%w: %w", errForeignWrite, err)
	case codeStoreFailed, codeNoResources, codeNoStorage:
		return fmt.Errorf("%w: %w", ErrFull, err)
	default:
		return err
	}
}

func (s *Store) lookupRecord(key wire.Key) *record {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.records[key]
}

// applyChange makes one durable change visible to readers and watchers. The caller holds mu.
func (s *Store) applyChange(c change, revision uint64) {
	s.revision = revision
	switch {
	case c.cursor != nil:
		s.cursor = *c.cursor
		for key := range s.ahead {
			if r := s.records[key]; r == nil || r.state != stateTombstone || s.isPassed(r) {
				s.dropTombstone(key, r)
			}
		}
	case c.record != nil:
		c.record.Revision = revision
		s.applyRecord(c.record)
	}
}

// isPassed reports whether the cursor has passed the tombstone, so that no older message can arrive.
func (s *Store) isPassed(r *record) bool {
	return r.epoch != s.cursor.StreamEpoch || r.lastRemoteSeq <= s.cursor.Sequence
}

func (s *Store) dropTombstone(key wire.Key, r *record) {
	delete(s.ahead, key)
	if r != nil && r.state == stateTombstone {
		delete(s.records, key)
	}
}

func (s *Store) applyRecord(r *record) {
	key, old := r.Key, s.records[r.Key]
	var prev *Entry
	if old != nil && old.state == stateLive {
		prev = &old.Entry
		s.metrics.objects.Dec()
		s.metrics.bytes.Sub(float64(len(old.Object)))
	}
	s.records[key] = r
	if r.state == stateLive {
		if s.kinds[kindOf(key)] == nil {
			s.kinds[kindOf(key)] = map[wire.Key]*record{}
		}
		s.kinds[kindOf(key)][key] = r
		s.metrics.objects.Inc()
		s.metrics.bytes.Add(float64(len(r.Object)))
		e := &Event{Type: Added, Entry: r.Entry, Prev: prev}
		if prev != nil {
			e.Type = Modified
		}
		s.publishEvent(e)
		return
	}
	delete(s.kinds[kindOf(key)], key)
	if r.state == stateTombstone {
		if s.isPassed(r) {
			delete(s.records, key)
		} else {
			s.ahead[key] = struct{}{}
		}
	}
	if prev != nil {
		last := *prev
		last.Revision = r.Revision
		s.publishEvent(&Event{Type: Deleted, Entry: last, Prev: prev})
	}
}
