package deliver

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/metrics"
)

// saver changes the store and the progress of the delivery together. Its methods may be called concurrently.
type saver struct {
	store   Store
	metrics *metrics.Metrics
	// token holds one token, which admits one change of the store and of progress.
	token chan struct{}

	mu sync.Mutex
	// progress is the part of the state that the store's cursor does not record. Guarded by mu; changed only by the owner of token.
	progress deliveryProgress
	// changed closes when progress changes; guarded by mu.
	changed chan struct{}
}

func newSaver(store Store, metrics *metrics.Metrics) *saver {
	return &saver{store: store, metrics: metrics, token: make(chan struct{}, 1), changed: make(chan struct{})}
}

// appendPiece appends a piece to a pending object.
func (s *saver) appendPiece(m *pendingObject, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.received = append(m.received, data...)
}

// saveBatch saves a batch to disk and moves the cursor as far as it may go.
func (s *saver) saveBatch(ctx context.Context, h deliveryBatch) error {
	if err := s.acquire(ctx); err != nil {
		return err
	}
	defer s.release()
	return s.commitBatch(ctx, h)
}

// commitBatch does the work of saveBatch. The caller holds the token.
func (s *saver) commitBatch(ctx context.Context, h deliveryBatch) error {
	next := s.current().applyBatch(h)
	spoken := slices.DeleteFunc(slices.Clone(h.messages), func(m wire.Message) bool { return m.Op == "" })
	if err := s.store.Apply(ctx, spoken, next.safeCursor()); err != nil {
		return fmt.Errorf("save: %w", err)
	}
	s.setProgress(next)
	s.observeLatency(spoken)
	return nil
}

// acquire acquires the token.
func (s *saver) acquire(ctx context.Context) error {
	select {
	case s.token <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// release returns the token.
func (s *saver) release() { <-s.token }

// current returns the progress.
func (s *saver) current() deliveryProgress {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.progress
}

// setProgress replaces the progress. The caller holds the token.
func (s *saver) setProgress(b deliveryProgress) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.progress = b
	close(s.changed)
	s.changed = make(chan struct{})
	s.metrics.PendingObjects.Set(float64(len(b.pending)))
}

// observeLatency observes the latency of messages that are now on disk.
func (s *saver) observeLatency(messages []wire.Message) {
	now := time.Now()
	for _, m := range messages {
		if !m.Time.IsZero() {
			s.metrics.Latency.Observe(max(0, now.Sub(m.Time).Seconds()))
		}
	}
}

// watchProgress returns the progress and a channel that closes when it changes.
func (s *saver) watchProgress() (deliveryProgress, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lacks := 0
	for _, m := range s.progress.pending {
		lacks += m.missingBytes()
	}
	s.metrics.PendingBytes.Set(float64(lacks))
	return s.progress, s.changed
}

// resumeCursor returns the cursor to list from. If the store's cursor differs from the delivery's progress, the store's value is used:
// the store may have found damage.
func (s *saver) resumeCursor(ctx context.Context) (wire.Cursor, error) {
	if err := s.acquire(ctx); err != nil {
		return wire.Cursor{}, err
	}
	defer s.release()
	cursor, b := s.store.Cursor(), s.current()
	if b.epoch != cursor.StreamEpoch || b.safeCursor() != cursor.Sequence {
		b = deliveryProgress{epoch: cursor.StreamEpoch, reached: cursor.Sequence}
		s.setProgress(b)
	}
	cursor.Sequence = b.reached
	return cursor, nil
}
