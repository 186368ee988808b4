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

	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/subject"
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
	// maxRecordSamples and maxRecordBytes bound the samples that one sync serves, which are one message of the leaf's stream.
	maxRecordSamples = 500
	maxRecordBytes   = 96 << 10
	// queuedAppends bounds the calls of Append that wait; further ones block.
	queuedAppends = 1024
	// The headers of a record.
	headerFirst  = "Frond-First" // the number of its first sample
	headerCount  = "Frond-Count"
	headerSource = "Frond-Source"
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
	samples []Sample
	source  *Source
	bytes   int
	class   Class
	done    chan error // with room for one; nil for Flow
}

// Store keeps the samples of a node's devices in the leaf's own JetStream until the hub has them.
type Store struct {
	js     jetstream.JetStream
	stream jetstream.Stream
	codec  *codec
	queue  chan *appending
	// closing is held by whoever appends; closed closes when Start's context has ended.
	closing sync.RWMutex
	closed  chan struct{}
	metrics *StoreMetrics
	log     *zap.Logger

	// Only Start uses these after OpenStore.
	next     uint64            // the number of the next sample
	previous map[string]uint64 // the last number of each device since the start
	unknown  bool              // an append failed: run and next must be read again

	mu     sync.Mutex
	run    string        // guarded by mu; identifies who gives the numbers, until the stream is lost
	source Source        // guarded by mu; of the last record that has one
	stored chan struct{} // guarded by mu; closed and replaced when a record was stored
}

// OpenStore opens the store over the node's in-process connection, and creates its stream if it is missing.
func OpenStore(ctx context.Context, cfg StoreConfig, nc *nats.Conn, metrics *StoreMetrics, log *zap.Logger) (*Store, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	c, err := newCodec()
	if err != nil {
		return nil, err
	}
	one := topology.Topology{Streams: []jetstream.StreamConfig{leafStream(cfg)}}
	if err := topology.EnsureStream(ctx, js, one, log); err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	stream, err := js.Stream(ctx, subject.LeafTelemetryStream)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	s := &Store{
		js: js, stream: stream, codec: c, queue: make(chan *appending, queuedAppends), closed: make(chan struct{}), metrics: metrics, log: log,
		previous: map[string]uint64{}, stored: make(chan struct{}),
	}
	return s, s.readPosition(ctx)
}

func leafStream(cfg StoreConfig) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: subject.LeafTelemetryStream, Description: "Waits for the link: samples of devices", Subjects: []string{subject.LeafTelemetrySubject},
		Retention: jetstream.LimitsPolicy, Storage: jetstream.FileStorage, Replicas: 1, Discard: jetstream.DiscardOld,
		MaxMsgSize: topology.MiB, MaxBytes: cfg.MaxBytes, MaxAge: cfg.MaxAge,
	}
}

// readPosition reads which number comes next: the last record stays in the stream when the hub has it, for this.
func (s *Store) readPosition(ctx context.Context) error {
	last, err := s.stream.GetLastMsgForSubject(ctx, subject.LeafTelemetrySubject)
	if topology.IsNotFound(err) {
		s.setPosition(rand.Text(), 1)
		return nil
	}
	if err != nil {
		return fmt.Errorf("telemetry: read the last record: %w", err)
	}
	record, err := parseRecord(last)
	if err != nil {
		s.log.Error("record of samples unreadable, numbers begin anew", zap.Uint64("sequence", last.Sequence), zap.Error(err))
		s.setPosition(rand.Text(), 1)
		return nil
	}
	s.setPosition(record.run, record.first+record.count)
	s.setSource(record.source)
	return nil
}

func (s *Store) setPosition(run string, next uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run, s.next = run, next
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
func (s *Store) AppendFrom(ctx context.Context, source Source, samples []Sample) error {
	for len(samples) > maxRecordSamples { // the source goes with the last ones
		if err := s.append(ctx, Exact, samples[:maxRecordSamples], nil); err != nil {
			return err
		}
		samples = samples[maxRecordSamples:]
	}
	return s.append(ctx, Exact, samples, &source)
}

// Append stores samples in order, as the class promises. It blocks while too many wait. An error says that none of them is known to be
// stored: append them again.
func (s *Store) Append(ctx context.Context, class Class, samples []Sample) error {
	for len(samples) > maxRecordSamples {
		if err := s.append(ctx, class, samples[:maxRecordSamples], nil); err != nil {
			return err
		}
		samples = samples[maxRecordSamples:]
	}
	return s.append(ctx, class, samples, nil)
}

// append stores the samples of one record.
func (s *Store) append(ctx context.Context, class Class, samples []Sample, source *Source) error {
	if len(samples) == 0 {
		return nil
	}
	a := &appending{samples: samples, class: class, source: source}
	for i := range samples {
		if err := samples[i].Validate(); err != nil {
			return err
		}
		a.bytes += len(samples[i].Value) + len(samples[i].Device) + len(samples[i].Property)
	}
	if class == Exact {
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
	select {
	case <-s.closed:
		return ErrClosed
	default:
	}
	select {
	case s.queue <- a:
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
		samples, size, exact = samples+len(a.samples), size+a.bytes, exact || a.class == Exact
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

// storeTimeout bounds the storing of one record; the leaf is in this process.
const storeTimeout = 15 * time.Second

// storeBatch stores a batch. If that fails, those of class Exact are told; those of class Flow are tried again until ctx ends.
func (s *Store) storeBatch(ctx context.Context, batch []*appending) {
	retry := flow.NewRetryBackoff()
	for len(batch) > 0 {
		err := s.storeRecords(context.WithoutCancel(ctx), batch)
		var kept []*appending
		for _, a := range batch {
			switch {
			case a.done != nil:
				a.done <- err
			case err != nil:
				kept = append(kept, a)
			}
		}
		if err == nil {
			return
		}
		s.metrics.Errors.Inc()
		s.log.Error("samples not stored", zap.Int("tried again", len(kept)), zap.Error(err))
		batch = kept
		if len(batch) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			s.log.Error("samples lost", zap.Int("appended", len(batch)))
			return
		case <-time.After(retry.Step()):
		}
	}
}

// storeRecords stores a batch as one record, or as a few.
func (s *Store) storeRecords(ctx context.Context, batch []*appending) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if s.unknown {
		if err := s.readPosition(ctx); err != nil {
			return err
		}
		s.unknown = false
	}
	var lines []line
	number, previous, source := s.next, map[string]uint64{}, s.Source()
	for _, a := range batch {
		if a.source != nil {
			source = *a.source
		}
		for i := range a.samples {
			sample := &a.samples[i]
			key := sample.Namespace + "/" + sample.Device
			before, known := previous[key]
			if !known {
				before = s.previous[key]
			}
			lines = append(lines, newLine(sample, number, before))
			previous[key] = number
			number++
		}
	}
	data, err := s.codec.encode(lines)
	if err != nil {
		return err
	}
	msg := &nats.Msg{Subject: subject.LeafTelemetrySubject, Data: data, Header: nats.Header{
		HeaderRun: {s.currentRun()}, headerFirst: {strconv.FormatUint(s.next, 10)}, headerCount: {strconv.Itoa(len(lines))},
	}}
	if source.Stream != "" {
		msg.Header[headerSource] = []string{source.Stream + "/" + strconv.FormatUint(source.Sequence, 10)}
	}
	if _, err := s.js.PublishMsg(ctx, msg); err != nil {
		s.unknown = true // it may be stored all the same
		return fmt.Errorf("telemetry: store %d samples: %w", len(lines), err)
	}
	failpoint.At("telemetry.stored")
	s.next = number
	s.setSource(source)
	maps.Copy(s.previous, previous)
	s.metrics.Appended.Add(float64(len(lines)))
	s.notify()
	return nil
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
