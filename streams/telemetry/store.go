package telemetry

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/semaphore"

	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/internal/lines"
	"github.com/frond-edge/frond/streams/topology"
)

// Class says what Append promises.
type Class int

const (
	// Exact says that the samples are on disk, synced, when Append returns.
	Exact Class = iota
	// Flow says that the samples are in memory when Append returns, and on disk, synced, some FlowDelay later. A crash loses those.
	Flow
)

const (
	// FlowDelay is how long samples of class Flow wait for others, so that one sync serves them all.
	FlowDelay = 500 * time.Millisecond
	// maxRecordSamples and maxRecordBytes bound the lines that one sync serves, which are one message of the leaf's stream. A line that is
	// larger has a record of its own.
	maxRecordSamples = 500
	maxRecordBytes   = 96 << 10
	// queuedAppends and queuedBytes bound the calls of Append that wait; further ones block.
	queuedAppends = 1024
	queuedBytes   = 4 << 20
	// The headers of a record.
	headerFirst  = "Frond-First" // the number of its first sample
	headerCount  = "Frond-Count"
	headerSource = "Frond-Source"
	headerSize   = "Frond-Size" // of its lines when they are decompressed
	// headerAttempt tells two records apart that were to have the same numbers.
	headerAttempt = "Frond-Attempt"
)

// ErrClosed says that the store has stopped.
var ErrClosed = errors.New("the telemetry store has stopped")

// StoreConfig configures a Store. The oldest samples are dropped beyond MaxBytes or MaxAge.
type StoreConfig struct {
	MaxBytes int64
	MaxAge   time.Duration
}

// Source is where samples were taken from: the sequence of a message in a stream that is read in order.
type Source struct {
	// Stream identifies one life of the stream.
	Stream   string
	Sequence uint64
}

// appending is one call of Append.
type appending struct {
	lines  []lines.Line
	source *Source
	// bytes is about the size of the lines, encoded.
	bytes int
	class Class
	done  chan error // with room for one; nil for Flow
}

// Store keeps what is sent of one kind in the leaf's own JetStream until the hub has it.
type Store struct {
	kind   lines.Kind
	bytes  *semaphore.Weighted // of what waits in queue
	js     jetstream.JetStream
	stream jetstream.Stream
	codec  *lines.Codec
	queue  chan *appending
	// closing is held by whoever appends; closed closes when Start's context has ended.
	closing sync.RWMutex
	closed  chan struct{}
	metrics *StoreMetrics
	log     *zap.Logger

	// Only Start uses these after OpenStore.
	next     uint64            // the number of the next line
	sequence uint64            // that of the last record, 0 without one
	previous map[string]uint64 // the last number of each group since the start
	attempt  string            // of the last record that was read
	unknown  bool              // an append failed: run, next and sequence must be read again

	mu     sync.Mutex
	run    string        // guarded by mu; identifies who gives the numbers, until the stream is lost
	source Source        // guarded by mu; of the last record that has one
	stored chan struct{} // guarded by mu; closed and replaced when a record was stored
}

// OpenStore opens the store over the node's in-process connection, and creates its stream if it is missing.
func OpenStore(ctx context.Context, kind lines.Kind, cfg StoreConfig, nc *nats.Conn, metrics *StoreMetrics, log *zap.Logger) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	c, err := lines.NewCodec()
	if err != nil {
		return nil, err
	}
	one := topology.Topology{Streams: []jetstream.StreamConfig{leafStream(kind, cfg)}}
	if err := topology.EnsureStream(ctx, js, one, log); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	stream, err := js.Stream(ctx, kind.LeafStream)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	s := &Store{
		kind: kind, bytes: semaphore.NewWeighted(queuedBytes), js: js, stream: stream, codec: c, queue: make(chan *appending, queuedAppends), closed: make(chan struct{}), metrics: metrics, log: log,
		previous: map[string]uint64{}, stored: make(chan struct{}),
	}
	return s, s.readPosition(ctx)
}

func leafStream(kind lines.Kind, cfg StoreConfig) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: kind.LeafStream, Description: "Waits for the link: " + kind.Noun, Subjects: []string{kind.LeafSubject, kind.LeafSubject + sentSuffix},
		Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Replicas: 1, Discard: jetstream.DiscardOld,
		MaxMsgSize: topology.MiB, MaxBytes: cfg.MaxBytes, MaxAge: cfg.MaxAge,
	}
}

// readPosition reads which number comes next: the last record stays in the stream when the hub has it, for this.
func (s *Store) readPosition(ctx context.Context) error {
	last, err := s.stream.GetLastMsgForSubject(ctx, s.kind.LeafSubject)
	if topology.IsNotFound(err) {
		s.setPosition(rand.Text(), 1, 0)
		return nil
	}
	if err != nil {
		return fmt.Errorf("telemetry: read the last record: %w", err)
	}
	record, err := parseRecord(last)
	if err != nil {
		s.log.Error("record unreadable, numbers begin anew", zap.Uint64("sequence", last.Sequence), zap.Error(err))
		s.setPosition(rand.Text(), 1, last.Sequence)
		return nil
	}
	s.setPosition(record.run, record.first+record.count, last.Sequence)
	s.attempt = record.attempt
	s.setSource(record.source)
	return nil
}

func (s *Store) setPosition(run string, next, sequence uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run, s.next, s.sequence = run, next, sequence
}

func (s *Store) setSource(source Source) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.source = source
}

// Source returns the last source that AppendFrom stored, also before a restart.
func (s *Store) Source() Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source
}

// AppendFrom is Append of class Exact for samples from a message of a stream, or of several up to it. The source is on disk with the
// samples, so whoever reads the stream again after a crash knows from Source which messages are done.
func (s *Store) AppendFrom(ctx context.Context, source Source, samples []lines.Sample) error {
	return s.append(ctx, Exact, newLines(samples), &source)
}

// Append stores samples in order, as the class promises. It blocks while too many wait. An error says that none of them is known to be
// stored: append them again.
func (s *Store) Append(ctx context.Context, class Class, samples []lines.Sample) error {
	return s.append(ctx, class, newLines(samples), nil)
}

// EnqueueMessage takes a message; the messages are stored in the order of the calls. The channel gives one answer: nil when the message is on
// disk, synced. EnqueueMessage blocks while too much waits.
func (s *Store) EnqueueMessage(ctx context.Context, message *lines.Message) (<-chan error, error) {
	l := lines.NewMessageLine(message)
	if err := s.kind.Check(&l); err != nil {
		return nil, err
	}
	a := &appending{lines: []lines.Line{l}, bytes: l.Size(), class: Exact, done: make(chan error, 1)}
	return a.done, s.enqueue(ctx, a)
}

func newLines(samples []lines.Sample) []lines.Line {
	list := make([]lines.Line, len(samples))
	for i := range samples {
		list[i] = lines.NewLine(&samples[i])
	}
	return list
}

// append stores lines as one record, or as several if they are too many or too large.
func (s *Store) append(ctx context.Context, class Class, list []lines.Line, source *Source) error {
	for i := range list {
		if err := s.kind.Check(&list[i]); err != nil {
			return err
		}
	}
	for len(list) > 0 {
		count, bytes := 0, 0
		for count < len(list) && count < maxRecordSamples {
			size := list[count].Size()
			if count > 0 && bytes+size > maxRecordBytes {
				break
			}
			count, bytes = count+1, bytes+size
		}
		a := &appending{lines: list[:count], bytes: bytes, class: class}
		if list = list[count:]; len(list) == 0 {
			a.source = source // the source goes with the last ones
		}
		if err := s.appendRecord(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// appendRecord stores the lines of one record.
func (s *Store) appendRecord(ctx context.Context, a *appending) error {
	if a.class == Exact {
		a.done = make(chan error, 1)
	}
	if err := s.enqueue(ctx, a); err != nil || a.done == nil {
		return err
	}
	select {
	case err := <-a.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("telemetry: %w", ctx.Err())
	}
}

// enqueue hands an appending to Start, which then stores it in any case.
func (s *Store) enqueue(ctx context.Context, a *appending) error {
	s.closing.RLock()
	defer s.closing.RUnlock()
	if err := s.bytes.Acquire(ctx, int64(a.bytes)); err != nil {
		return fmt.Errorf("telemetry: %w", err)
	}
	queued := false
	defer func() {
		if !queued {
			s.bytes.Release(int64(a.bytes))
		}
	}()
	select {
	case <-s.closed:
		return ErrClosed
	default:
	}
	select {
	case s.queue <- a:
		queued = true
		return nil
	case <-s.closed:
		return ErrClosed
	case <-ctx.Done():
		return fmt.Errorf("telemetry: %w", ctx.Err())
	}
}

// Start stores what is appended until ctx ends, then what was appended until then, and returns nil.
func (s *Store) Start(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { close(s.closed) })()
	for {
		batch := s.collect(ctx)
		if len(batch) == 0 {
			break
		}
		s.storeBatch(ctx, batch)
	}
	<-s.closed
	s.closing.Lock() // whoever was appending is done or refused
	defer s.closing.Unlock()
	for {
		batch := s.collect(ctx)
		if len(batch) == 0 {
			return nil
		}
		s.storeBatch(ctx, batch)
	}
}

// collect returns the appendings that are stored together, none when ctx has ended and none is left.
func (s *Store) collect(ctx context.Context) (batch []*appending) {
	var late <-chan time.Time
	samples, size, exact := 0, 0, false
	add := func(a *appending) {
		batch = append(batch, a)
		samples, size, exact = samples+len(a.lines), size+a.bytes, exact || a.class == Exact
	}
	select {
	case a := <-s.queue:
		add(a)
	case <-ctx.Done():
		select {
		case a := <-s.queue:
			add(a)
		default:
			return nil
		}
	}
	for samples < maxRecordSamples && size < maxRecordBytes {
		select {
		case a := <-s.queue:
			add(a)
			continue
		default:
		}
		if exact || ctx.Err() != nil {
			break
		}
		if late == nil {
			late = time.After(FlowDelay)
		}
		select {
		case a := <-s.queue:
			add(a)
			continue
		case <-late:
		case <-ctx.Done():
		}
		break
	}
	return batch
}

const (
	// storeTimeout bounds one request to the leaf's JetStream, which is in this process: a disk may stand still for a while.
	storeTimeout = 5 * time.Second
	// settleTimeout bounds the storing of one record, with all its attempts. After it, nobody knows whether it is stored.
	settleTimeout = 30 * time.Second
)

// storeBatch stores a batch, in as many records as its size takes. If that fails, those of class Exact are told; those of class Flow are tried
// again until ctx ends.
func (s *Store) storeBatch(ctx context.Context, batch []*appending) {
	retry := flow.NewRetryBackoff()
	for len(batch) > 0 {
		part := nextRecord(batch)
		err := s.storeRecord(context.WithoutCancel(ctx), part)
		var kept []*appending
		for _, a := range part {
			if err != nil && a.done == nil {
				kept = append(kept, a)
				continue
			}
			s.bytes.Release(int64(a.bytes))
			if a.done != nil {
				a.done <- err
			}
		}
		batch = append(kept, batch[len(part):]...)
		if err == nil {
			continue
		}
		s.metrics.Errors.Inc()
		s.log.Error(s.kind.Noun+" not stored", zap.Int("tried again", len(kept)), zap.Error(err))
		if len(kept) == 0 {
			continue
		}
		select {
		case <-ctx.Done():
			s.log.Error(s.kind.Noun+" lost", zap.Int("appended", len(kept)))
			s.release(kept)
			batch = batch[len(kept):]
		case <-time.After(retry.Step()):
		}
	}
}

// release gives the place of appendings back.
func (s *Store) release(all []*appending) {
	for _, a := range all {
		s.bytes.Release(int64(a.bytes))
	}
}

// nextRecord returns the appendings that one record takes, at least one.
func nextRecord(batch []*appending) []*appending {
	samples, size := 0, 0
	for i, a := range batch {
		samples, size = samples+len(a.lines), size+a.bytes
		if i > 0 && (samples > lines.MaxLines || size > 2*maxRecordBytes) {
			return batch[:i]
		}
	}
	return batch
}

// errNumbersTaken says that another record has the numbers of one that is to be stored: an earlier one, whose attempt the disk has finished late.
var errNumbersTaken = errors.New("an earlier record has these numbers")

// storeRecord stores a record, behind any whose storing was given up and that is stored all the same.
func (s *Store) storeRecord(ctx context.Context, batch []*appending) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	for {
		if s.unknown {
			if err := s.readPosition(ctx); err != nil {
				return err
			}
			s.unknown = false
		}
		err := s.storeOnce(ctx, batch)
		if !errors.Is(err, errNumbersTaken) || ctx.Err() != nil {
			return err
		}
		clear(s.previous) // what the other record holds is not known here
	}
}

// storeOnce stores a record with the next numbers.
func (s *Store) storeOnce(ctx context.Context, batch []*appending) error {
	var list []lines.Line
	number, previous, source := s.next, map[string]uint64{}, s.Source()
	for _, a := range batch {
		if a.source != nil {
			source = *a.source
		}
		for i := range a.lines {
			l := &a.lines[i]
			l.Number, l.Previous = number, 0
			if key := s.kind.Group(l); key != "" {
				before, known := previous[key]
				if !known {
					before = s.previous[key]
				}
				l.Previous, previous[key] = before, number
			}
			list = append(list, *l)
			number++
		}
	}
	data, size, err := s.codec.Encode(list)
	if err != nil {
		return err
	}
	msg := &nats.Msg{Subject: s.kind.LeafSubject, Data: data, Header: nats.Header{
		lines.HeaderRun: {s.currentRun()}, headerFirst: {strconv.FormatUint(s.next, 10)}, headerCount: {strconv.Itoa(len(list))},
		headerSize: {strconv.Itoa(size)}, headerAttempt: {rand.Text()},
	}}
	if source.Stream != "" {
		msg.Header[headerSource] = []string{source.Stream + "/" + strconv.FormatUint(source.Sequence, 10)}
	}
	if err := s.publish(ctx, msg, s.next, number); err != nil {
		s.unknown = true // it may be stored all the same
		return fmt.Errorf("telemetry: store %d %s: %w", len(list), s.kind.Noun, err)
	}
	s.kind.ReachStored()
	s.next = number
	s.setSource(source)
	maps.Copy(s.previous, previous)
	s.metrics.Appended.Add(float64(len(list)))
	s.notify()
	return nil
}

// publish stores a record on the condition that the last one is still the one that the store knows, so that an attempt whose answer is late or
// lost, because the disk stands still, is made again without storing anything twice.
func (s *Store) publish(ctx context.Context, msg *nats.Msg, first, next uint64) error {
	run := s.currentRun()
	retry := flow.NewRetryBackoff()
	for {
		rctx, cancel := context.WithTimeout(ctx, storeTimeout)
		ack, err := s.js.PublishMsg(rctx, msg, jetstream.WithExpectLastSequencePerSubject(s.sequence))
		cancel()
		if err == nil {
			s.sequence = ack.Sequence
			return nil
		}
		var refusal *jetstream.APIError
		refused := errors.As(err, &refusal)
		overtaken := refused && (refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequence || refusal.ErrorCode == jetstream.JSErrCodeStreamWrongLastSequenceConstant)
		if refused && !overtaken || ctx.Err() != nil {
			return err
		}
		if overtaken {
			if err := s.readPosition(ctx); err != nil {
				return err
			}
			switch {
			case s.currentRun() == run && s.next == next && s.attempt == msg.Header.Get(headerAttempt): // an attempt before has stored it
				return nil
			case s.currentRun() == run && s.next > first:
				return errNumbersTaken
			case s.currentRun() != run && s.next != 1 || s.currentRun() == run && s.next != first:
				return err
			}
			// The last record is gone, dropped or expired: the numbers go on.
			s.setPosition(run, first, s.sequence)
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retry.Step()):
		}
	}
}

func (s *Store) notify() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.stored)
	s.stored = make(chan struct{})
}

// currentRun is the run of the numbers that the store gives.
func (s *Store) currentRun() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.run
}

// changed returns a channel that is closed when another record is stored.
func (s *Store) changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stored
}
