package read

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// lagRetries and lagBackoff are how long the replicas of a stream may take to catch up with its leader before each message is
	// requested from the leader itself: on a healthy hub they need milliseconds.
	lagRetries = 4
	lagBackoff = 30 * time.Millisecond
	// MaxExactSubjects limits the subjects that one direct get requests by name, below the server's 1,024.
	MaxExactSubjects = 500
)

// ReadAtLeast reads a page, as readPage does, but from a server that has seen everything up to sequence atLeast: any replica that confirms
// it, else the stream's leader. An object missing from the page did not exist at that sequence.
func (r *StreamReader) ReadAtLeast(ctx context.Context, filters []string, start uint64, messages, bytes int, atLeast uint64) (SnapshotPage, error) {
	for try := range lagRetries {
		dctx, cancel := context.WithTimeout(ctx, DirectGetTimeout)
		p, err := r.readDirect(dctx, filters, start, messages, bytes)
		cancel()
		switch {
		case errors.Is(err, ErrTooManySubjects):
			return SnapshotPage{}, err
		case err == nil && p.UpTo >= atLeast && p.UpTo != 0:
			return p, nil
		case err == nil && p.UpTo == 0:
			// An empty reply does not say how far the replica is.
			return r.readFromLeader(ctx, filters, start, messages, bytes, atLeast)
		}
		select {
		case <-ctx.Done():
			return SnapshotPage{}, errors.Join(ctx.Err(), err)
		case <-time.After(lagBackoff << try):
		}
	}
	return r.readFromLeader(ctx, filters, start, messages, bytes, atLeast)
}

// readFromLeader reads a page through the stream's leader, message by message.
func (r *StreamReader) readFromLeader(ctx context.Context, filters []string, start uint64, messages, bytes int, atLeast uint64) (SnapshotPage, error) {
	var p SnapshotPage
	var all []wire.SnapshotObject
	for _, filter := range filters {
		subjects, last, err := r.ListSubjects(ctx, filter)
		if err != nil {
			return SnapshotPage{}, err
		}
		if last < atLeast {
			return SnapshotPage{}, fmt.Errorf("sequence %d is not seen: %w", atLeast, ErrReplicaLags)
		}
		if p.UpTo == 0 || last < p.UpTo {
			p.UpTo = last
		}
		for _, subject := range subjects {
			object, err := r.ReadLastOf(ctx, subject)
			if err != nil {
				return SnapshotPage{}, err
			}
			if object.Sequence >= start {
				all = append(all, object)
			}
		}
	}
	slices.SortFunc(all, func(a, b wire.SnapshotObject) int { return cmp.Compare(a.Sequence, b.Sequence) })
	size := 0
	for i, object := range all {
		if i > 0 && (i == messages || size >= bytes) {
			p.More = true
			break
		}
		size += len(object.Data)
		p.Messages, p.LastSequence = append(p.Messages, object), object.Sequence
	}
	return p, nil
}

// ListSubjects returns the subjects that match, and the last sequence of the leader before it listed them.
func (r *StreamReader) ListSubjects(ctx context.Context, filter string) (subjects []string, last uint64, err error) {
	stream, err := r.Js.Stream(ctx, r.Stream)
	if err != nil {
		return nil, 0, err
	}
	last = stream.CachedInfo().State.LastSeq
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, 0, err
	}
	if info.State.LastSeq < last {
		return nil, 0, ErrReplicaLags // another leader
	}
	return slices.Sorted(maps.Keys(info.State.Subjects)), last, nil
}

// ReadLastOf requests the last message of a subject from the leader. The library would ask any replica.
func (r *StreamReader) ReadLastOf(ctx context.Context, subject string) (wire.SnapshotObject, error) {
	ctx, cancel := context.WithTimeout(ctx, DirectGetTimeout)
	defer cancel()
	body, err := json.Marshal(map[string]string{"last_by_subj": subject})
	if err != nil {
		return wire.SnapshotObject{}, err
	}
	msg, err := r.Nc.RequestWithContext(ctx, "$JS.API.STREAM.MSG.GET."+r.Stream, body)
	if err != nil {
		return wire.SnapshotObject{}, err
	}
	var answer struct {
		Error   *jetstream.APIError `json:"error"`
		Message struct {
			Subject  string `json:"subject"`
			Sequence uint64 `json:"seq"`
			Header   []byte `json:"hdrs"`
			Data     []byte `json:"data"`
		} `json:"message"`
	}
	if err := json.Unmarshal(msg.Data, &answer); err != nil {
		return wire.SnapshotObject{}, err
	}
	if answer.Error != nil {
		return wire.SnapshotObject{}, answer.Error
	}
	header := nats.Header{}
	if len(answer.Message.Header) != 0 {
		if header, err = nats.DecodeHeadersMsg(answer.Message.Header); err != nil {
			return wire.SnapshotObject{}, err
		}
	}
	return snapshotObject(answer.Message.Subject, answer.Message.Sequence, header, answer.Message.Data), nil
}
