// Package shares gives each node a bounded share of a stream of the hub that all nodes fill.
//
// Such a stream drops its oldest messages when it is full, whoever sent them, so one node that floods it would push out what all others sent. Before it is
// full, the messages of those nodes are removed that have much more than an equal part, the oldest first; each keeps at least its last one.
//
// Each cloudcore counts what it writes itself. What the stream holds of each node it reads from the stream, at its start and when what it knows is old: so a
// cloudcore that has just started, and one that was replaced for a while, know it too. Two cloudcores that trim a node remove the same.
package shares

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/time/rate"
)

const (
	// checkPercent of the stream's limit may be written by this cloudcore before it looks at the stream: half of what highPercent leaves free, divided by
	// the cloudcores that may write at the same time.
	checkPercent = 1
	// readInterval is how often the subjects of a full stream are read at most: with 100,000 subjects that takes half a second.
	readInterval = time.Minute
	// timeout bounds a check with all its requests: the node whose call makes it waits, and gives up after topology.PumpTimeout. The next check does the
	// rest.
	timeout = 5 * time.Second
)

// Config configures Shares.
type Config struct {
	// Stream is the stream's name, and All matches all that it has.
	Stream, All string
	// Filter matches what the stream has of a node, NodeOf returns whose a subject is.
	Filter func(node string) string
	NodeOf func(subject string) (string, error)
}

// usage is what a node has in the stream.
type usage struct {
	// messages is an estimate: those that were there when the stream was read, and those that this cloudcore has written since.
	messages uint64
	// written and bytes are what this cloudcore has written since it started: they tell the size of a message.
	written, bytes uint64
}

// Shares trims one stream.
type Shares struct {
	cfg     Config
	js      jetstream.JetStream
	trimmed *prometheus.CounterVec // by node
	log     *zap.Logger
	now     func() time.Time
	warning rate.Sometimes

	checking sync.Mutex // held by who looks at the stream

	mu        sync.Mutex
	nodes     map[string]*usage // guarded by mu
	unchecked uint64            // guarded by mu; bytes written since the last look
	limit     uint64            // guarded by mu; the stream's, 0 before the first look
	readAt    time.Time         // guarded by mu; when the subjects were read
}

// New returns Shares of a stream. trimmed counts messages, by node.
func New(cfg Config, js jetstream.JetStream, trimmed *prometheus.CounterVec, log *zap.Logger) *Shares {
	return &Shares{cfg: cfg, js: js, trimmed: trimmed, log: log, now: time.Now, warning: rate.Sometimes{Interval: time.Minute}, nodes: map[string]*usage{}}
}

// Wrote counts what was written of a node, and trims the stream if that is due: then it takes some time, which slows down who writes much. A failure is
// logged; the stream drops its oldest messages then.
func (s *Shares) Wrote(ctx context.Context, node string, messages, bytes uint64) {
	if !s.count(node, messages, bytes) || !s.checking.TryLock() {
		return
	}
	defer s.checking.Unlock()
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := s.check(ctx); err != nil && ctx.Err() == nil {
		s.log.Warn("stream not trimmed", zap.String("stream", s.cfg.Stream), zap.Error(err))
	}
}

// count reports whether it is time to look at the stream.
func (s *Shares) count(node string, messages, bytes uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.nodes[node]
	if u == nil {
		u = &usage{}
		s.nodes[node] = u
	}
	u.messages, u.written, u.bytes = u.messages+messages, u.written+messages, u.bytes+bytes
	s.unchecked += bytes
	return s.unchecked >= s.limit*checkPercent/100
}

// check trims the stream if it is nearly full.
func (s *Shares) check(ctx context.Context) error {
	stream, err := s.js.Stream(ctx, s.cfg.Stream)
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	limit := uint64(max(info.Config.MaxBytes, 0))
	s.mu.Lock()
	s.limit, s.unchecked = limit, 0
	s.mu.Unlock()
	if limit == 0 || !isNearlyFull(info.State.Bytes, limit) {
		return nil
	}
	if err := s.read(ctx, stream); err != nil {
		return err
	}
	for _, t := range planTrims(s.bytes(info.State), limit) {
		if err := s.trim(ctx, stream, t); err != nil {
			return fmt.Errorf("trim what %s sent: %w", t.node, err)
		}
	}
	return nil
}

// read reads how many messages the stream has of each node, unless that is known.
func (s *Shares) read(ctx context.Context, stream jetstream.Stream) error {
	s.mu.Lock()
	known := s.now().Sub(s.readAt) < readInterval
	s.mu.Unlock()
	if known {
		return nil
	}
	at := s.now()
	counts, err := s.countMessages(ctx, stream, s.cfg.All)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readAt = at
	for node, u := range s.nodes {
		if u.messages = counts[node]; u.messages == 0 {
			delete(s.nodes, node)
		}
	}
	for node, n := range counts {
		if s.nodes[node] == nil {
			s.nodes[node] = &usage{messages: n}
		}
	}
	return nil
}

// countMessages returns how many messages with some subjects the stream has of each node.
func (s *Shares) countMessages(ctx context.Context, stream jetstream.Stream, filter string) (map[string]uint64, error) {
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(filter))
	if err != nil {
		return nil, err
	}
	counts := map[string]uint64{}
	for subject, n := range info.State.Subjects {
		node, err := s.cfg.NodeOf(subject)
		if err != nil {
			continue // no cloudcore writes it
		}
		counts[node] += n
	}
	return counts, nil
}

// bytes returns how many bytes each node has, about. Together they are what the stream has.
func (s *Shares) bytes(state jetstream.StreamState) map[string]uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, sum := make(map[string]uint64, len(s.nodes)), uint64(0)
	for node, u := range s.nodes {
		all[node] = u.messages * u.size(state)
		sum += all[node]
	}
	for node, n := range all {
		all[node] = uint64(float64(n) / float64(max(sum, 1)) * float64(state.Bytes))
	}
	return all
}

// size is that of a message of the node, in bytes; the stream's mean if this cloudcore has written none.
func (u *usage) size(state jetstream.StreamState) uint64 {
	if u.written > 0 {
		return max(u.bytes/u.written, 1)
	}
	return max(state.Bytes/max(state.Msgs, 1), 1)
}

// trim removes the oldest messages of a node. What it really has is read first: what is known may be old.
func (s *Shares) trim(ctx context.Context, stream jetstream.Stream, t trim) error {
	filter := s.cfg.Filter(t.node)
	counts, err := s.countMessages(ctx, stream, filter)
	if err != nil {
		return err
	}
	has := counts[t.node]
	s.mu.Lock()
	u := s.nodes[t.node]
	u.messages = has
	keep := max(t.keep/u.size(stream.CachedInfo().State), 1)
	s.mu.Unlock()
	if has <= keep {
		return nil
	}
	if err := stream.Purge(ctx, jetstream.WithPurgeSubject(filter), jetstream.WithPurgeKeep(keep)); err != nil {
		return err
	}
	s.mu.Lock()
	u.messages = keep
	s.mu.Unlock()
	s.trimmed.WithLabelValues(t.node).Add(float64(has - keep))
	s.warning.Do(func() {
		s.log.Warn("a node fills the stream, its oldest messages are removed", zap.String("stream", s.cfg.Stream), zap.String("node", t.node), zap.Uint64("messages", has-keep))
	})
	return nil
}
