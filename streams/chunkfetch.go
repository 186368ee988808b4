package streams

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
	"github.com/frond-edge/frond/internal/crash"
)

const (
	// pieceTimeout is how long one piece may take, which is asked for to take 1 s.
	pieceTimeout = callTimeout
	// goneFor is how long a mark may stand of which the hub says that there is something newer, before the node stops waiting
	// for that and attaches for everything.
	goneFor = time.Minute
)

var errGone = errors.New("the stream holds another message by now")

// fetch brings the payloads of the marks, a piece at a time and the smallest first, until ctx ends.
func (d *Delivery) fetch(ctx context.Context) error {
	retry := newRetry()
	gone := map[*mark]time.Time{} // since when; only of marks that stand
	for ctx.Err() == nil {
		b, changed := d.look()
		for m := range gone {
			if !b.holds(m) {
				delete(gone, m)
			}
		}
		up, linkChanged := d.link.State()
		m := b.smallest(keys(gone))
		wait := retryNever
		switch {
		case up && m != nil:
			err := d.advanceWhile(ctx, linkChanged, m)
			if err == nil {
				retry = newRetry()
				continue
			}
			if errors.Is(err, errGone) {
				gone[m] = time.Now()
				continue // its successor is on its way
			}
			d.log.Debug("piece not fetched", zap.String("subject", m.subject), zap.Error(err))
			wait = retry.Step()
		case up && len(gone) > 0:
			wait = time.Second
			d.impatient(gone)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-linkChanged:
			retry = newRetry()
		case <-time.After(wait):
		}
	}
	return nil
}

// retryNever is longer than anything that is waited for without a reason of its own to end.
const retryNever = time.Hour

func keys(gone map[*mark]time.Time) map[*mark]struct{} {
	set := make(map[*mark]struct{}, len(gone))
	for m := range gone {
		set[m] = struct{}{}
	}
	return set
}

// impatient asks to attach for everything when a successor did not come.
func (d *Delivery) impatient(gone map[*mark]time.Time) {
	for m, since := range gone {
		if time.Since(since) > goneFor {
			d.log.Warn("a large object was replaced and its successor did not come, resyncing", zap.String("subject", m.subject))
			d.Resync()
			clear(gone) // asked for once more in a while, if it still stands
			return
		}
	}
}

// look returns the backlog and a channel that closes when it changes.
func (d *Delivery) look() (backlog, <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	lacks := 0
	for _, m := range d.backlog.marks {
		lacks += m.lacks()
	}
	d.metrics.lacking.Set(float64(lacks))
	return d.backlog, d.changed
}

// advanceWhile is advance until the link changes: what was asked over another link is not answered.
func (d *Delivery) advanceWhile(ctx context.Context, linkChanged <-chan struct{}, m *mark) error {
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
	return d.advance(ctx, m)
}

// advance fetches one piece of a mark, and saves the object when that was the last one.
func (d *Delivery) advance(ctx context.Context, m *mark) error {
	if m.lacks() > 0 {
		if err := d.piece(ctx, m); err != nil {
			return err
		}
		crash.At("piece.fetched")
	}
	if m.lacks() > 0 {
		return nil
	}
	message, err := d.whole(ctx, m)
	if err != nil {
		return err
	}
	if err := d.claim(ctx); err != nil {
		return err
	}
	defer d.yield()
	if !d.state().holds(m) {
		return nil // something newer came meanwhile
	}
	crash.At("piece.last")
	if err := d.commit(ctx, haul{messages: []wire.Message{message}}); err != nil {
		return err
	}
	crash.At("piece.saved")
	return nil
}

// whole decodes what has been fetched. Garbage goes to the dead letters, as much of it as the link takes, and becomes a
// message without operation.
func (d *Delivery) whole(ctx context.Context, m *mark) (wire.Message, error) {
	message, err := d.codec.decode(m.subject, m.header, m.have)
	message.Sequence = m.sequence
	if err == nil {
		return message, nil
	}
	if err := d.dead.put(ctx, Desired, m.subject, m.header, m.have[:min(len(m.have), d.pace.take())], err); err != nil {
		return message, err
	}
	return wire.Message{Node: d.node, Key: m.key, Sequence: m.sequence}, nil
}

// piece asks for the next piece of a mark and keeps it. Two pieces of one message are of the same bytes, whoever answers.
func (d *Delivery) piece(ctx context.Context, m *mark) error {
	take := d.pace.take()
	body, err := json.Marshal(wire.PieceRequest{
		StreamEpoch: m.epoch, Subject: m.subject, Sequence: m.sequence, Offset: len(m.have), Length: min(take, m.lacks()),
	})
	if err != nil {
		return err
	}
	pctx, cancel := context.WithTimeout(ctx, pieceTimeout)
	defer cancel()
	asked := time.Now()
	msg, err := d.nc.RequestWithContext(pctx, CallSubject(d.node, VerbPiece), body)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			d.pace.unanswered()
		}
		d.metrics.pieces.WithLabelValues("error").Inc()
		return fmt.Errorf("piece of %s: %w", m.subject, err)
	}
	data, err := pieceOf(msg, m, take)
	if err != nil {
		result := "error"
		if errors.Is(err, errGone) {
			result = "gone"
		}
		d.metrics.pieces.WithLabelValues(result).Inc()
		return fmt.Errorf("piece of %s: %w", m.subject, err)
	}
	d.pace.answered(len(data), time.Since(asked))
	d.metrics.pieces.WithLabelValues("ok").Inc()
	d.mu.Lock()
	defer d.mu.Unlock()
	m.have = append(m.have, data...)
	return nil
}

// pieceOf reads the answer to a request for at most take bytes.
func pieceOf(msg *nats.Msg, m *mark, take int) ([]byte, error) {
	if msg.Header.Get(headerGone) != "" {
		return nil, errGone
	}
	text := msg.Header.Get(headerSize)
	if text == "" {
		var refused callError
		if err := json.Unmarshal(msg.Data, &refused); err != nil {
			return nil, fmt.Errorf("answer: %w", err)
		}
		return nil, errors.New(refused.Error)
	}
	size, err := strconv.Atoi(text)
	switch {
	case err != nil:
		return nil, fmt.Errorf("header %s: %w", headerSize, err)
	case size != m.size:
		return nil, fmt.Errorf("the payload has %d bytes, listed were %d", size, m.size)
	case len(msg.Data) == 0 || len(msg.Data) > take || len(msg.Data) > m.lacks():
		return nil, fmt.Errorf("%d bytes at %d of %d, at most %d were asked for", len(msg.Data), len(m.have), m.size, take)
	}
	return msg.Data, nil
}

// Awaited tells whether a newer state of the object is being fetched, which the store does not have yet.
func (d *Delivery) Awaited(key wire.Key) bool { return d.state().marks[key] != nil }
