// Package twinstore keeps the records of a gateway's devices in a stream of the leaf's own JetStream: one message each, synced.
package twinstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	stream = "TWINS"
	prefix = "twins."
	// maxBytes is some 40,000 devices with ten properties, or 500 with the largest records.
	maxBytes = 128 << 20
)

// Store keeps records. It implements devicetwin.RecordStore.
type Store struct {
	js     jetstream.JetStream
	stream jetstream.Stream
}

// Open opens the store over the node's in-process connection, and creates its stream if it is missing. A stream that the disk has damaged is
// created anew with what can still be read.
func Open(ctx context.Context, nc *nats.Conn, log *zap.Logger) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("twins: %w", err)
	}
	one := topology.Topology{Streams: []jetstream.StreamConfig{{
		Name: stream, Description: "What devices have reported, the last record of each", Subjects: []string{prefix + ">"},
		Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Replicas: 1, MaxMsgsPerSubject: 1,
		MaxMsgSize: topology.MiB, MaxBytes: maxBytes, Discard: jetstream.DiscardNew,
	}}}
	if err := topology.EnsureStream(ctx, js, one, log); err != nil {
		return nil, fmt.Errorf("twins: %w", err)
	}
	s, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("twins: %w", err)
	}
	return &Store{js: js, stream: s}, nil
}

func subjectOf(id types.NamespacedName) string {
	return prefix + wire.Escape(id.Namespace) + "." + wire.Escape(id.Name)
}

// idOf is the inverse of subjectOf.
func idOf(subject string) (id types.NamespacedName, err error) {
	namespace, name, ok := strings.Cut(strings.TrimPrefix(subject, prefix), ".")
	if !ok {
		return id, fmt.Errorf("%w: %.120q", wire.ErrToken, subject)
	}
	if id.Namespace, err = wire.Unescape(namespace); err != nil {
		return id, err
	}
	id.Name, err = wire.Unescape(name)
	return id, err
}

// SaveTwins implements devicetwin.RecordStore.
func (s *Store) SaveTwins(ctx context.Context, records map[types.NamespacedName][]byte) error {
	var errs []error
	var futures []jetstream.PubAckFuture
	for id, record := range records {
		if record == nil {
			if err := s.stream.Purge(ctx, jetstream.WithPurgeSubject(subjectOf(id))); err != nil {
				errs = append(errs, fmt.Errorf("forget %s: %w", id, err))
			}
			continue
		}
		future, err := s.js.PublishMsgAsync(&nats.Msg{Subject: subjectOf(id), Data: record})
		if err != nil {
			errs = append(errs, fmt.Errorf("store %s: %w", id, err))
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
			return fmt.Errorf("store twins: %w", ctx.Err())
		}
	}
	return errors.Join(errs...)
}

// LoadTwins implements devicetwin.RecordStore.
func (s *Store) LoadTwins(ctx context.Context) (map[types.NamespacedName][]byte, error) {
	info, err := s.stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("twins: %w", err)
	}
	records := map[types.NamespacedName][]byte{}
	for seq := info.State.FirstSeq; seq <= info.State.LastSeq; {
		m, err := s.stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(prefix+">"))
		if topology.IsNotFound(err) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read twins: %w", err)
		}
		seq = m.Sequence + 1
		id, err := idOf(m.Subject)
		if err != nil {
			return nil, fmt.Errorf("read twins: %w", err)
		}
		records[id] = m.Data
	}
	return records, nil
}
