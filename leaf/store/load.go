package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// readBatch is the number of records that one fetch requests; the client buffers them.
	readBatch = 256
	// quarantineTTL is how long bad bytes are kept for inspection.
	quarantineTTL = 7 * 24 * time.Hour
	// consumerIdle is the time after which the server drops the consumer of a store that died while reading.
	consumerIdle = 30 * time.Second
	// stateVoid marks the former place of a record that was moved into quarantine.
	stateVoid state = "void"
)

// bucketConfig returns the bucket's configuration: that of the stock KV tools, plus atomic batches and message TTLs. With
// DiscardNew a full bucket refuses a write; the other policy would drop the oldest object.
func bucketConfig(maxBytes int64) jetstream.StreamConfig {
	if maxBytes <= 0 {
		maxBytes = -1
	}
	return jetstream.StreamConfig{
		Name:               streamName,
		Description:        "Kubernetes objects of this node. Written by Frond alone.",
		Subjects:           []string{subjectPrefix + ">"},
		Storage:            jetstream.FileStorage,
		MaxMsgsPerSubject:  1,
		MaxBytes:           maxBytes,
		MaxMsgs:            -1,
		MaxMsgSize:         -1,
		MaxConsumers:       -1,
		Discard:            jetstream.DiscardNew,
		Replicas:           1,
		AllowRollup:        true,
		DenyDelete:         true,
		AllowDirect:        true,
		AllowMsgTTL:        true,
		AllowAtomicPublish: true,
	}
}

// scanResult is the result of reading the bucket.
type scanResult struct {
	store   *Store
	changes []scannedChange
	bad     []badRecord
	// lastSequence and sum are the sequence and sum header of the last message read.
	lastSequence uint64
	sum, names   string
	// unreadable: the server cannot read some record. It cannot overwrite it either, so the bucket must be rebuilt.
	unreadable bool
	// neverPlain: the bucket has never held a secret as plain text.
	neverPlain bool
}

type scannedChange struct {
	change
	revision uint64
}

type badRecord struct {
	subject  string
	header   nats.Header
	data     []byte
	revision uint64
	reason   error
}

// loadBucket ensures the bucket and fills memory from it.
func (s *Store) loadBucket(ctx context.Context) error {
	s.dirty = true
	stream, err := s.js.CreateOrUpdateStream(ctx, bucketConfig(s.cfg.MaxBytes))
	if err != nil {
		return fmt.Errorf("ensure bucket %s: %w", streamName, err)
	}
	s.metrics.objects.Set(0)
	s.metrics.bytes.Set(0)
	end, got, err := s.readBucket(ctx, stream, 1)
	if resumed, err := s.resumeRebuild(ctx, stream, got, end); resumed || err != nil {
		return err
	}
	if err != nil {
		return err
	}
	s.neverPlain = s.cfg.Sealer != nil && (end == 0 || got.neverPlain)
	s.mu.Lock()
	for _, c := range got.changes {
		if c.cursor != nil {
			s.cursor = *c.cursor // first: the cursor decides which tombstones still matter
		}
	}
	for _, c := range got.changes {
		s.applyChange(c.change, c.revision)
	}
	s.revision = end
	s.events = eventWindow{startRevision: end} // changes from before the opening are no events
	s.mu.Unlock()
	s.recordSum, s.nameSum = s.sumRecords()
	s.dirty = false
	if err := s.repairDamage(ctx, got, end); err != nil {
		return err
	}
	return s.resealBucket(ctx)
}

// sumRecords recomputes the sums over all records and over their names.
func (s *Store) sumRecords() (sum, names uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, r := range s.records {
		sum += r.checksumTerm()
		names += r.nameTerm()
	}
	return sum, names
}

// readBucket returns the bucket's last sequence and all messages from the sequence from on.
func (s *Store) readBucket(ctx context.Context, stream jetstream.Stream, from uint64) (end uint64, got scanResult, err error) {
	got.store = s
	info, err := stream.Info(ctx)
	if err != nil {
		return 0, scanResult{}, fmt.Errorf("bucket info: %w", err)
	}
	end = info.State.LastSeq
	if info.State.Msgs == 0 || from > end {
		return end, scanResult{}, nil
	}
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Name: "frond-store-" + uuid.NewString(), DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerIdle,
	})
	if err != nil {
		return 0, scanResult{}, fmt.Errorf("read bucket: %w", err)
	}
	pending := consumer.CachedInfo().NumPending
	for pending > 0 && err == nil {
		pending, err = got.fetchBatch(ctx, consumer)
	}
	if errors.Is(err, errReadStuck) {
		got, err = s.readEachRecord(ctx, stream, from)
	}
	if err != nil {
		return 0, scanResult{}, fmt.Errorf("read bucket: %w", err)
	}
	if err := stream.DeleteConsumer(ctx, consumer.CachedInfo().Name); err != nil {
		return 0, scanResult{}, fmt.Errorf("end reading: %w", err)
	}
	return max(end, got.lastSequence), got, nil
}

// errReadStuck reports that the server stops delivering although it counts more messages: a consumer stops at a record
// whose bytes fail the server's own checksum.
var errReadStuck = errors.New("reading stopped at a damaged record")

// readEachRecord reads the bucket record by record and skips damaged ones. It is slow and needs only the server's index.
func (s *Store) readEachRecord(ctx context.Context, stream jetstream.Stream, from uint64) (scanResult, error) {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return scanResult{}, fmt.Errorf("list subjects: %w", err)
	}
	got := scanResult{store: s}
	var messages []*jetstream.RawStreamMsg
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		switch {
		case ctx.Err() != nil:
			return scanResult{}, ctx.Err()
		case err != nil:
			// The lost record no longer has a sequence; each number beyond the end is free once.
			revision := info.State.LastSeq + 1 + uint64(len(got.bad))
			got.bad = append(got.bad, badRecord{subject: subject, revision: revision, reason: err})
			got.unreadable = true
		case m.Sequence >= from:
			messages = append(messages, m)
		}
	}
	slices.SortFunc(messages, func(a, b *jetstream.RawStreamMsg) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for _, m := range messages {
		got.addMessage(m.Subject, m.Header, m.Data, m.Sequence)
	}
	return got, nil
}

// lastCursor returns the bucket's cursor, or its zero value if there is none.
func (f *scanResult) lastCursor() (cursor wire.Cursor) {
	for _, c := range f.changes {
		if c.cursor != nil {
			cursor = *c.cursor
		}
	}
	return cursor
}

// fetchBatch reads one batch and returns how many messages are left.
func (f *scanResult) fetchBatch(ctx context.Context, consumer jetstream.Consumer) (pending uint64, err error) {
	batch, err := consumer.FetchNoWait(readBatch)
	if err != nil {
		return 0, err
	}
	n := 0
	for m := range batch.Messages() {
		meta, err := m.Metadata()
		if err != nil {
			return 0, err
		}
		f.addMessage(m.Subject(), m.Headers(), m.Data(), meta.Sequence.Stream)
		pending = meta.NumPending
		n++
	}
	if err := batch.Error(); err != nil {
		return 0, err
	}
	if n == 0 {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		return 0, errReadStuck
	}
	return pending, nil
}

// addMessage adds one message of the bucket to the result.
func (f *scanResult) addMessage(subject string, header nats.Header, data []byte, revision uint64) {
	f.lastSequence, f.sum, f.names = revision, header.Get(headerSum), header.Get(headerNames)
	var c change
	var err error
	switch {
	case strings.HasPrefix(subject, quarantinePrefix), header.Get(headerState) == string(stateVoid):
		return
	case subject == cursorSubject:
		var cursor wire.Cursor
		cursor, err = parseCursor(header, data)
		c.cursor, f.neverPlain = &cursor, header.Get(headerSealed) != ""
	case strings.HasPrefix(subject, objectPrefix):
		c.record, err = f.store.parseRecord(subject, header, data, revision)
	default:
		err = errors.New("not a key of the store")
	}
	if err != nil {
		f.bad = append(f.bad, badRecord{subject, header, data, revision, err})
		return
	}
	f.changes = append(f.changes, scannedChange{c, revision})
}
