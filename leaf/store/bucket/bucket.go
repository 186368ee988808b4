// Package bucket reads and writes the store's key-value bucket in the node's own JetStream: the message of each record, the
// ordered and synced write of several messages, and reading all of them with damage reported. It knows no object in memory.
package bucket

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
	"github.com/frond-edge/frond/leaf/store/record"
)

var (
	// ErrFull reports that the bucket's size limit or the disk refuses the write.
	ErrFull = errors.New("store is full")
	// ErrForeignWrite reports that the bucket holds a write that this store did not make or has not read.
	ErrForeignWrite = errors.New("another writer changed the bucket")
)

// maxPipelined is the largest number of messages that are published one by one, each with its own sync. An atomic batch has
// one sync in all, but creates, syncs and removes a folder: for 16 messages both take the same time (bench_test.go).
const maxPipelined = 16

// Headers of nats-server: the expected last sequence, and the atomic batch (ADR-50).
const (
	headerExpected    = jetstream.ExpectedLastSeqHeader
	headerBatch       = "Nats-Batch-Id"
	headerBatchSeq    = "Nats-Batch-Sequence"
	headerBatchCommit = "Nats-Batch-Commit"
)

// Config holds the options of a bucket.
type Config struct {
	// MaxBytes limits the bucket on disk; 0 is no limit. A write beyond it gets ErrFull.
	MaxBytes int64
	// TombstoneTTL is how long delete markers stay on disk, at least 1 s.
	TombstoneTTL time.Duration
	// Sealing seals the payloads of secret objects.
	Sealing record.Sealing
}

// Bucket is one store's stream. It holds no state of its own and may be used concurrently; Publish orders writers.
type Bucket struct {
	// Codec converts between records and the bucket's messages.
	Codec Codec
	cfg   Config
	js    jetstream.JetStream
	log   *zap.Logger
}

// New returns the bucket on js, which need not exist yet.
func New(cfg Config, js jetstream.JetStream, log *zap.Logger) *Bucket {
	return &Bucket{Codec{TombstoneTTL: cfg.TombstoneTTL, Sealing: cfg.Sealing}, cfg, js, log}
}

// Ensure creates the bucket or updates its configuration.
func (b *Bucket) Ensure(ctx context.Context) (jetstream.Stream, error) {
	stream, err := b.js.CreateOrUpdateStream(ctx, streamConfig(b.cfg.MaxBytes))
	if err != nil {
		return nil, fmt.Errorf("ensure bucket %s: %w", streamName, err)
	}
	return stream, nil
}

// Lookup returns the stream of a bucket that exists.
func (b *Bucket) Lookup(ctx context.Context) (jetstream.Stream, error) {
	stream, err := b.js.Stream(ctx, streamName)
	if err != nil {
		return nil, fmt.Errorf("look up bucket: %w", err)
	}
	return stream, nil
}

// Recreate replaces the bucket by an empty one, whose first sequence follows revision.
func (b *Bucket) Recreate(ctx context.Context, revision uint64) error {
	if err := b.js.DeleteStream(ctx, streamName); err != nil {
		return fmt.Errorf("delete bucket: %w", err)
	}
	stream, err := b.js.CreateStream(ctx, streamConfig(b.cfg.MaxBytes))
	if err != nil {
		// The server removes the folder of an account's last stream after a delay and may remove the new stream's folder with it.
		stream, err = b.js.CreateStream(ctx, streamConfig(b.cfg.MaxBytes))
	}
	if err != nil {
		return fmt.Errorf("create bucket: %w", err)
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSequence(revision+1)); err != nil {
		return fmt.Errorf("set sequence: %w", err)
	}
	return nil
}

// IsMissing reports whether the server does not find the record of a key, which it should have. It then cannot read it.
func IsMissing(ctx context.Context, stream jetstream.Stream, key wire.Key) bool {
	_, err := stream.GetLastMsgForSubject(ctx, objectPrefix+key.String())
	return errors.Is(err, jetstream.ErrMsgNotFound)
}

// streamConfig returns the bucket's configuration: that of the stock KV tools, plus atomic batches and message TTLs. With
// DiscardNew a full bucket refuses a write; the other policy would drop the oldest object.
func streamConfig(maxBytes int64) jetstream.StreamConfig {
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

// Publish writes messages so that they get the sequences after base, in order, and waits until they are synced. After a refused
// message none is stored. It returns ErrForeignWrite if the bucket does not end at base, and ErrFull if there is no space.
func (b *Bucket) Publish(ctx context.Context, base uint64, messages []*nats.Msg) error {
	return mapServerError(b.publishInOrder(ctx, base, messages))
}

func (b *Bucket) publishInOrder(ctx context.Context, base uint64, messages []*nats.Msg) error {
	expect := func(m *nats.Msg, last uint64) { m.Header.Set(headerExpected, strconv.FormatUint(last, 10)) }
	want := base + uint64(len(messages))
	if len(messages) > maxPipelined {
		expect(messages[0], base)
		return b.publishBatch(ctx, want, messages)
	}
	acks := make([]jetstream.PubAckFuture, 0, len(messages))
	for i, m := range messages {
		expect(m, base+uint64(i))
		ack, err := b.js.PublishMsgAsync(m)
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
		return fmt.Errorf("%w: stored at %d, expected %d", ErrForeignWrite, got, want)
	}
	return nil
}

func (b *Bucket) publishBatch(ctx context.Context, want uint64, messages []*nats.Msg) error {
	id := uuid.NewString()
	last := len(messages) - 1
	for i, m := range messages {
		m.Header.Set(headerBatch, id)
		m.Header.Set(headerBatchSeq, strconv.Itoa(i+1))
		if i == last {
			m.Header.Set(headerBatchCommit, "1")
			continue
		}
		if err := b.js.Conn().PublishMsg(m); err != nil {
			return err
		}
		failpoint.At("save.batched")
	}
	ack, err := b.js.PublishMsg(ctx, messages[last])
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
		return fmt.Errorf("%w: %w", ErrForeignWrite, err)
	case codeStoreFailed, codeNoResources, codeNoStorage:
		return fmt.Errorf("%w: %w", ErrFull, err)
	default:
		return err
	}
}

// CarryQuarantine returns the records in quarantine for the bucket that replaces this one, each for the rest of its time.
// Unreadable records are dropped: they serve only to investigate a fault.
func (b *Bucket) CarryQuarantine(ctx context.Context) []record.Change {
	list, err := b.listQuarantine(ctx)
	if err != nil {
		b.log.Warn("records in quarantine are lost with the bucket that is created again", zap.Error(err))
		return nil
	}
	changes := make([]record.Change, 0, len(list))
	for _, old := range list {
		m, err := b.Codec.rewriteQuarantined(old)
		if err != nil {
			b.log.Warn("a record in quarantine is lost with the bucket that is created again", zap.String("subject", old.Subject), zap.Error(err))
			continue
		}
		if m != nil {
			changes = append(changes, record.Change{Raw: m})
		}
	}
	return changes
}

// listQuarantine reads the records in quarantine one by one: the server may be unable to read a record between them.
func (b *Bucket) listQuarantine(ctx context.Context) ([]*jetstream.RawStreamMsg, error) {
	stream, err := b.Lookup(ctx)
	if err != nil {
		return nil, err
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(quarantinePrefix+">"))
	if err != nil {
		return nil, fmt.Errorf("list quarantine: %w", err)
	}
	var list []*jetstream.RawStreamMsg
	for subject := range info.State.Subjects {
		m, err := stream.GetLastMsgForSubject(ctx, subject)
		if err != nil {
			b.log.Warn("a record in quarantine cannot be read", zap.String("subject", subject), zap.Error(err))
			continue
		}
		list = append(list, m)
	}
	return list, nil
}
