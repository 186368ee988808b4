package bucket

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
	"github.com/frond-edge/frond/leaf/store/record"
)

const (
	// readBatch is the number of records that one fetch requests; the client buffers them.
	readBatch = 256
	// consumerIdle is the time after which the server drops the consumer of a store that died while reading.
	consumerIdle = 30 * time.Second
)

// Scan is the result of reading the bucket.
type Scan struct {
	// Changes are the undamaged records, in the order of their revisions.
	Changes []record.Change
	Bad     []BadRecord
	// End is the bucket's last sequence.
	End uint64
	// LastSequence, Sum and Names are the sequence and the sum headers of the last message read.
	LastSequence uint64
	Sum, Names   string
	// Unreadable: the server cannot read some record. It cannot overwrite it either, so the bucket must be rebuilt.
	Unreadable bool
	// NeverPlain: the bucket has never held a secret as plain text.
	NeverPlain bool
	// carried is the cursor that the last message carries, own the one with a record of its own; nil for none.
	carried, own *wire.Cursor
}

// Cursor returns the bucket's cursor, or its zero value if there is none. It is that of the last message. A message that an older
// version or another writer wrote carries none: then it is that of the cursor's own record. The cursors that earlier messages
// carry do not count, as the store may have been set back after them.
func (f *Scan) Cursor() wire.Cursor {
	for _, c := range []*wire.Cursor{f.carried, f.own} {
		if c != nil {
			return *c
		}
	}
	return wire.Cursor{}
}

// BadRecord is a message of the bucket that is damaged or foreign. Without Data it could not be read at all.
type BadRecord struct {
	Subject  string
	Header   nats.Header
	Data     []byte
	Revision uint64
	Reason   error
}

// Key returns the key of the object that the record's subject names.
func (r BadRecord) Key() (wire.Key, error) {
	return wire.ParseKey(strings.TrimPrefix(r.Subject, objectPrefix))
}

// IsCursor reports whether the record is in the cursor's place.
func (r BadRecord) IsCursor() bool { return r.Subject == cursorSubject }

// IsDamage reports whether the record is in the place of an object or of the cursor, so that one of these was lost.
func (r BadRecord) IsDamage() bool { return r.IsCursor() || strings.HasPrefix(r.Subject, objectPrefix) }

// IsState reports whether the readable part of the record names the live object of another record.
func (r BadRecord) IsState(other *record.Record) bool {
	return other.State == record.Live && r.Header.Get(headerState) == string(record.Live) && r.Header.Get(headerUID) == other.UID
}

// Read reads all messages from the sequence from on. After an error the scan is empty.
func (b *Bucket) Read(ctx context.Context, stream jetstream.Stream, from uint64) (got Scan, err error) {
	info, err := stream.Info(ctx)
	if err != nil {
		return Scan{}, fmt.Errorf("bucket info: %w", err)
	}
	end := info.State.LastSeq
	if info.State.Msgs == 0 || from > end {
		return Scan{End: end}, nil
	}
	consumer, err := stream.CreateConsumer(ctx, jetstream.ConsumerConfig{
		Name: "frond-store-" + uuid.NewString(), DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: from,
		AckPolicy: jetstream.AckNonePolicy, MemoryStorage: true, Replicas: 1, InactiveThreshold: consumerIdle,
	})
	if err != nil {
		return Scan{}, fmt.Errorf("read bucket: %w", err)
	}
	pending := consumer.CachedInfo().NumPending
	for pending > 0 && err == nil {
		pending, err = b.fetchBatch(ctx, consumer, &got)
	}
	if errors.Is(err, errReadStuck) {
		got, err = b.readEachRecord(ctx, stream, from)
	}
	if err != nil {
		return Scan{}, fmt.Errorf("read bucket: %w", err)
	}
	if err := stream.DeleteConsumer(ctx, consumer.CachedInfo().Name); err != nil {
		return Scan{}, fmt.Errorf("end reading: %w", err)
	}
	got.End = max(end, got.LastSequence)
	return got, nil
}

// errReadStuck reports that the server stops delivering although it counts more messages: a consumer stops at a record
// whose bytes fail the server's own checksum.
var errReadStuck = errors.New("reading stopped at a damaged record")

// readEachRecord reads the bucket record by record and skips damaged ones. It is slow and needs only the server's index.
func (b *Bucket) readEachRecord(ctx context.Context, stream jetstream.Stream, from uint64) (Scan, error) {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(">"))
	if err != nil {
		return Scan{}, fmt.Errorf("list subjects: %w", err)
	}
	got := Scan{}
	var messages []*jetstream.RawStreamMsg
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		switch {
		case ctx.Err() != nil:
			return Scan{}, ctx.Err()
		case err != nil:
			// The lost record no longer has a sequence; each number beyond the end is free once.
			revision := info.State.LastSeq + 1 + uint64(len(got.Bad))
			got.Bad = append(got.Bad, BadRecord{Subject: subject, Revision: revision, Reason: err})
			got.Unreadable = true
		case m.Sequence >= from:
			messages = append(messages, m)
		}
	}
	slices.SortFunc(messages, func(a, b *jetstream.RawStreamMsg) int { return cmp.Compare(a.Sequence, b.Sequence) })
	for _, m := range messages {
		b.addMessage(&got, m.Subject, m.Header, m.Data, m.Sequence)
	}
	return got, nil
}

// fetchBatch reads one batch and returns how many messages are left.
func (b *Bucket) fetchBatch(ctx context.Context, consumer jetstream.Consumer, got *Scan) (pending uint64, err error) {
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
		b.addMessage(got, m.Subject(), m.Headers(), m.Data(), meta.Sequence.Stream)
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

// addMessage adds one message of the bucket to a scan.
func (b *Bucket) addMessage(got *Scan, subject string, header nats.Header, data []byte, revision uint64) {
	got.LastSequence, got.Sum, got.Names = revision, header.Get(headerSum), header.Get(headerNames)
	carried, err := parseCarriedCursor(header)
	got.carried = carried
	switch {
	case strings.HasPrefix(subject, quarantinePrefix), header.Get(headerState) == stateVoid:
		return
	case subject == cursorSubject:
		err = got.addCursor(header, data)
	case strings.HasPrefix(subject, objectPrefix):
		r, recordErr := b.Codec.parseRecord(subject, header, data, revision)
		if err = cmp.Or(recordErr, err); err == nil {
			got.Changes = append(got.Changes, record.Change{Record: r, Revision: revision})
		}
	default:
		err = errors.New("not a key of the store")
	}
	if err != nil {
		got.Bad = append(got.Bad, BadRecord{subject, header, data, revision, err})
	}
}

// addCursor adds the cursor's own record.
func (f *Scan) addCursor(header nats.Header, data []byte) error {
	cursor, err := parseCursor(header, data)
	if err != nil {
		return err
	}
	f.carried, f.own, f.NeverPlain = &cursor, &cursor, header.Get(headerSealed) != ""
	return nil
}
