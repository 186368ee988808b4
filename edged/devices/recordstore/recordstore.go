// Package recordstore keeps what a gateway knows of its devices and mappers in streams of the leaf's own JetStream: one message for each record, the
// last one counts, synced.
package recordstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/topology"
)

// maxBytes bounds a store: some 40,000 devices with ten properties, or 500 with the largest records.
const maxBytes = 128 << 20

// maxOverrides is enough for 50,000 values.
const maxOverrides = 8 << 20

// Kind is what a store keeps.
type Kind struct {
	// Stream is the stream's name, Prefix the first token of its subjects.
	Stream, Prefix, Description string
	// MaxBytes bounds the stream; the leaf reserves them on its disk.
	MaxBytes int64
}

// Twins keeps a record of each device, Mappers one of each mapper and of each device that it has.
func Twins() Kind {
	return Kind{"TWINS", "twins.", "What devices have reported, the last record of each", maxBytes}
}

// Overrides keeps the desired values that were set on the gateway.
func Overrides() Kind {
	return Kind{"OVERRIDES", "overrides.", "Desired values that were set on the gateway, by device", maxOverrides}
}

// Mappers is described at Twins.
func Mappers() Kind {
	return Kind{"MAPPERS", "mappers.", "What each mapper has, the last record of each", maxBytes}
}

// Store keeps records by key, which may be any text.
type Store struct {
	kind   Kind
	js     jetstream.JetStream
	stream jetstream.Stream
}

// Open opens a store over the node's in-process connection, and creates its stream if it is missing. A stream that the disk has damaged is
// created anew with what can still be read.
func Open(ctx context.Context, kind Kind, nc *nats.Conn, log *zap.Logger) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind.Stream, err)
	}
	one := topology.Topology{Streams: []jetstream.StreamConfig{{
		Name: kind.Stream, Description: kind.Description, Subjects: []string{kind.Prefix + ">"},
		Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Replicas: 1, MaxMsgsPerSubject: 1,
		MaxMsgSize: topology.MiB, MaxBytes: kind.MaxBytes, Discard: jetstream.DiscardNew, AllowAtomicPublish: true,
	}}}
	if err := topology.EnsureStream(ctx, js, one, log); err != nil {
		return nil, fmt.Errorf("%s: %w", kind.Stream, err)
	}
	s, err := js.Stream(ctx, kind.Stream)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind.Stream, err)
	}
	return &Store{kind: kind, js: js, stream: s}, nil
}

// maxPipelined is the largest number of records that are stored one by one, each with its own sync. An atomic batch has one sync in all, but creates, syncs
// and removes a folder: for 16 messages both take the same time (leaf/store).
const maxPipelined = 16

// maxBatch is within nats-server's limit of 1,000 messages.
const maxBatch = 500

// The headers of JetStream's atomic batches (ADR-50).
const (
	headerBatch         = "Nats-Batch-Id"
	headerBatchSequence = "Nats-Batch-Sequence"
	headerBatchCommit   = "Nats-Batch-Commit"
)

// Save stores records and deletes those that are nil. When it returns nil they are on disk, all of them; with an error each may be.
func (s *Store) Save(ctx context.Context, records map[string][]byte) error {
	var errs []error
	messages := make([]*nats.Msg, 0, len(records))
	for key, record := range records {
		subject := s.kind.Prefix + wire.Escape(key)
		if record != nil {
			messages = append(messages, &nats.Msg{Subject: subject, Data: record})
		} else if err := s.stream.Purge(ctx, jetstream.WithPurgeSubject(subject)); err != nil {
			errs = append(errs, fmt.Errorf("forget %s: %w", key, err))
		}
	}
	for len(messages) > maxPipelined {
		n := min(len(messages), maxBatch)
		if err := s.publishBatch(ctx, messages[:n]); err != nil {
			errs = append(errs, fmt.Errorf("store %d records: %w", n, err))
		}
		messages = messages[n:]
	}
	return errors.Join(append(errs, s.publish(ctx, messages))...)
}

// publish stores records one by one. It waits until ctx ends, however long the disk stands still.
func (s *Store) publish(ctx context.Context, messages []*nats.Msg) error {
	var errs []error
	futures := make([]jetstream.PubAckFuture, 0, len(messages))
	for _, m := range messages {
		future, err := s.js.PublishMsgAsync(m)
		if err != nil {
			errs = append(errs, fmt.Errorf("store %s: %w", m.Subject, err))
			continue
		}
		futures = append(futures, future)
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			errs = append(errs, fmt.Errorf("store %s: %w", future.Msg().Subject, err))
		case <-ctx.Done():
			return fmt.Errorf("store in %s: %w", s.kind.Stream, ctx.Err())
		}
	}
	return errors.Join(errs...)
}

// publishBatch stores at least two records with one sync, all or none.
func (s *Store) publishBatch(ctx context.Context, messages []*nats.Msg) error {
	id, last := rand.Text(), len(messages)-1
	for i, m := range messages {
		m.Header = nats.Header{headerBatch: {id}, headerBatchSequence: {strconv.Itoa(i + 1)}}
		if i < last {
			if err := s.js.Conn().PublishMsg(m); err != nil {
				return err
			}
		}
	}
	messages[last].Header[headerBatchCommit] = []string{"1"}
	return s.publish(ctx, messages[last:]) // PublishMsg has a timeout of its own, which a disk that stands still exceeds
}

// Load returns all records.
func (s *Store) Load(ctx context.Context) (map[string][]byte, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.kind.Stream, err)
	}
	records := map[string][]byte{}
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; {
		m, err := s.stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(s.kind.Prefix+">"))
		if topology.IsNotFound(err) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", s.kind.Stream, err)
		}
		seq = m.Sequence + 1
		key, err := wire.Unescape(strings.TrimPrefix(m.Subject, s.kind.Prefix))
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", s.kind.Stream, err)
		}
		records[key] = m.Data
	}
	return records, nil
}
