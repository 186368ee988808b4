package deliver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/subject"
)

const (
	// pieceTimeout bounds the request for one piece; pieces are sized to take 1 s.
	pieceTimeout = call.CallTimeout
	// successorTimeout is how long an object may stay pending after the hub said that it has a newer message, before the node stops
	// waiting for that message and requests a full attach.
	successorTimeout = time.Minute
)

var errSuperseded = errors.New("the stream holds another message by now")

// pieceFetcher fetches payloads that are too large for a link to take at a time.
type pieceFetcher struct {
	parts
	link link.Link
	// resync requests a full attach.
	resync func()
}

// fetchPending fetches the payloads of the pending objects, one piece at a time and the smallest payload first, until ctx ends.
func (f *pieceFetcher) fetchPending(ctx context.Context) error {
	retry := flow.NewRetryBackoff()
	gone := map[*pendingObject]time.Time{} // when the hub first said so; only for objects that are still pending
	for ctx.Err() == nil {
		b, changed := f.saver.watchProgress()
		for m := range gone {
			if !b.isPending(m) {
				delete(gone, m)
			}
		}
		up, linkChanged := f.link.State()
		m := b.smallestPending(pendingSet(gone))
		wait := noRetryWait
		switch {
		case up && m != nil:
			err := f.fetchUntilLinkChange(ctx, linkChanged, m)
			if err == nil {
				retry = flow.NewRetryBackoff()
				continue
			}
			if errors.Is(err, errSuperseded) {
				gone[m] = time.Now()
				continue // its successor will be delivered
			}
			f.log.Debug("piece not fetched", zap.String("subject", m.subject), zap.Error(err))
			wait = retry.Step()
		case up && len(gone) > 0:
			wait = time.Second
			f.resyncIfSuccessorLate(gone)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-linkChanged:
			retry = flow.NewRetryBackoff()
		case <-time.After(wait):
		}
	}
	return nil
}

// noRetryWait is longer than any wait that must end without an event of its own.
const noRetryWait = time.Hour

func pendingSet(gone map[*pendingObject]time.Time) map[*pendingObject]struct{} {
	set := make(map[*pendingObject]struct{}, len(gone))
	for m := range gone {
		set[m] = struct{}{}
	}
	return set
}

// resyncIfSuccessorLate requests a full attach when a successor did not arrive in time.
func (f *pieceFetcher) resyncIfSuccessorLate(gone map[*pendingObject]time.Time) {
	for m, since := range gone {
		if time.Since(since) > successorTimeout {
			f.log.Warn("a large object was replaced and its successor did not come, resyncing", zap.String("subject", m.subject))
			f.resync()
			clear(gone) // requested again after another timeout, if the object is still pending
			return
		}
	}
}

// fetchUntilLinkChange runs fetchNextPiece until the link changes: a request sent over another link is not answered.
func (f *pieceFetcher) fetchUntilLinkChange(ctx context.Context, linkChanged <-chan struct{}, m *pendingObject) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-linkChanged:
			cancel()
		case <-done:
		}
	}()
	return f.fetchNextPiece(ctx, m)
}

// fetchNextPiece fetches one piece of a pending object, and saves the object after its last piece.
func (f *pieceFetcher) fetchNextPiece(ctx context.Context, m *pendingObject) error {
	if m.missingBytes() > 0 {
		if err := f.requestPiece(ctx, m); err != nil {
			return err
		}
		failpoint.At("piece.fetched")
	}
	if m.missingBytes() > 0 {
		return nil
	}
	message, err := f.decodePending(ctx, m)
	if err != nil {
		return err
	}
	if err := f.saver.acquire(ctx); err != nil {
		return err
	}
	defer f.saver.release()
	if !f.saver.current().isPending(m) {
		return nil // a newer message arrived meanwhile
	}
	failpoint.At("piece.last")
	if err := f.saver.commitBatch(ctx, deliveryBatch{messages: []wire.Message{message}}); err != nil {
		return err
	}
	failpoint.At("piece.saved")
	return nil
}

// decodePending decodes a fetched payload. A malformed one goes to the dead letters, as much of it as the link takes, and becomes a
// message without an operation.
func (f *pieceFetcher) decodePending(ctx context.Context, m *pendingObject) (wire.Message, error) {
	message, err := f.codec.Decode(m.subject, m.header, m.received)
	message.Sequence = m.sequence
	if err == nil {
		return message, nil
	}
	if err := f.deadLetters.Put(ctx, subject.Desired, m.subject, m.header, m.received[:min(len(m.received), f.bandwidth.Budget())], err); err != nil {
		return message, err
	}
	return wire.Message{Node: f.node, Key: m.key, Sequence: m.sequence}, nil
}

// requestPiece requests the next piece of a pending object and appends it. All cloudcores cut the pieces of one message from the same
// bytes.
func (f *pieceFetcher) requestPiece(ctx context.Context, m *pendingObject) error {
	take := f.bandwidth.Budget()
	body, err := json.Marshal(wire.PieceRequest{
		StreamEpoch: m.epoch, Subject: m.subject, Sequence: m.sequence, Offset: len(m.received), Length: min(take, m.missingBytes()),
	})
	if err != nil {
		return err
	}
	pctx, cancel := context.WithTimeout(ctx, pieceTimeout)
	defer cancel()
	asked := time.Now()
	msg, err := f.nc.RequestWithContext(pctx, subject.CallSubject(f.node, subject.VerbPiece), body)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			f.bandwidth.ObserveTimeout()
		} else {
			f.bandwidth.ObserveNoReply(min(take, m.missingBytes()), time.Since(asked))
		}
		f.metrics.Pieces.WithLabelValues("error").Inc()
		return fmt.Errorf("piece of %s: %w", m.subject, err)
	}
	data, err := parsePieceReply(msg, m, take)
	if err != nil {
		result := "error"
		if errors.Is(err, errSuperseded) {
			result = "gone"
		}
		f.metrics.Pieces.WithLabelValues(result).Inc()
		return fmt.Errorf("piece of %s: %w", m.subject, err)
	}
	f.bandwidth.ObserveReply(len(data), time.Since(asked))
	f.metrics.Pieces.WithLabelValues("ok").Inc()
	f.saver.appendPiece(m, data)
	return nil
}

// parsePieceReply parses the reply to a request for at most take bytes.
func parsePieceReply(msg *nats.Msg, m *pendingObject, take int) ([]byte, error) {
	if msg.Header.Get(envelope.HeaderGone) != "" {
		return nil, errSuperseded
	}
	text := msg.Header.Get(envelope.HeaderSize)
	if text == "" {
		var refused call.ResultError
		if err := json.Unmarshal(msg.Data, &refused); err != nil {
			return nil, fmt.Errorf("answer: %w", err)
		}
		return nil, errors.New(refused.Error)
	}
	size, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("header %s: %w", envelope.HeaderSize, err)
	case size != m.size:
		return nil, fmt.Errorf("the payload has %d bytes, listed were %d", size, m.size)
	case len(msg.Data) == 0 || len(msg.Data) > take || len(msg.Data) > m.missingBytes():
		return nil, fmt.Errorf("%d bytes at %d of %d, at most %d were asked for", len(msg.Data), len(m.received), m.size, take)
	}
	return msg.Data, nil
}
