package streams

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/crash"
)

const (
	// beatPeriod is a node's heartbeat: three may be lost before 30 s are over.
	beatPeriod = 10 * time.Second
	// beatSpacing is the least time between two beats when the cursor moves: the cloud purges tombstones by it.
	beatSpacing = time.Second
	// maxBeat bounds a beat; it is some 200 bytes.
	maxBeat = 4096
	// beatQueue holds beats of all nodes until they are handled.
	beatQueue = 4096
)

// Beater sends a node's heartbeat: every 10 s, and within a second after its cursor or health has changed or it was fenced. While the link
// is down nobody hears it.
type Beater struct {
	node    string
	nc      *nats.Conn
	compose func(census bool) wire.Beat
	who     chan string // of a few: questions that are not answered yet
	log     *zap.Logger
}

// NewBeater makes the heartbeat of a node; compose gives the beat of this moment, each 10 s with a
// census of the store, and must not block.
func NewBeater(node string, nc *nats.Conn, compose func(census bool) wire.Beat, log *zap.Logger) *Beater {
	return &Beater{node: node, nc: nc, compose: compose, who: make(chan string, 4), log: log}
}

// Answer sends a heartbeat at once that repeats the cloud's question. It does not block.
func (b *Beater) Answer(question []byte) {
	if len(question) > maxQuestion {
		return
	}
	select {
	case b.who <- string(question):
	default:
	}
}

// maxQuestion bounds what is repeated.
const maxQuestion = 64

// Start beats until ctx ends and then returns nil.
func (b *Beater) Start(ctx context.Context) error {
	ticker := time.NewTicker(beatSpacing)
	defer ticker.Stop()
	var last wire.Beat
	var counted time.Time
	for {
		due := time.Since(counted) >= beatPeriod
		beat := b.compose(due)
		if due || beat.Cursor != last.Cursor || beat.Healthy != last.Healthy || beat.Fenced != last.Fenced {
			if err := b.send(beat); err != nil {
				b.log.Warn("beat not sent", zap.Error(err))
			}
			crash.At("ack.beaten")
			last = beat
			if due {
				counted = time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case question := <-b.who:
			beat := b.compose(false)
			beat.Who = question
			if err := b.send(beat); err != nil {
				b.log.Warn("beat not sent", zap.Error(err))
			}
		case <-ticker.C:
		}
	}
}

func (b *Beater) send(beat wire.Beat) error {
	body, err := json.Marshal(beat)
	if err != nil {
		return err
	}
	return b.nc.Publish(BeatSubject(b.node), body)
}

// Beats hears the heartbeats of all nodes. Each cloudcore hears each of them, but for those of a node that sends more than five
// each second.
type Beats struct {
	nc      *nats.Conn
	handle  func(ctx context.Context, node string, beat wire.Beat)
	dead    *deadLetters
	metrics *Metrics
	log     *zap.Logger
}

// NewBeats makes the listener; handle is called for one beat after the other and must not block.
func NewBeats(nc *nats.Conn, handle func(ctx context.Context, node string, beat wire.Beat), metrics *Metrics, log *zap.Logger) (*Beats, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("beats: %w", err)
	}
	return &Beats{nc: nc, handle: handle, metrics: metrics, log: log, dead: &deadLetters{js: js, from: cloudFrom, metrics: metrics, log: log}}, nil
}

// Start listens until ctx ends and then returns nil.
func (b *Beats) Start(ctx context.Context) error {
	incoming, floods := make(chan *nats.Msg, beatQueue), make(chan string, garbageQueue)
	brakes := newBrakes()
	// What is too much is dropped before the queue: there it would leave no room for the beats of others.
	sub, err := b.nc.Subscribe(beatPrefix+allNodes, func(msg *nats.Msg) {
		node := token(msg.Subject, 1)
		switch pass, first := brakes.pass(node, time.Now()); {
		case pass:
			offer(incoming, msg)
			return
		case first:
			offer(floods, node)
		}
		b.metrics.flooded.Inc()
	})
	if err != nil {
		return fmt.Errorf("hear beats: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	garbage := make(chan refusedBeat, garbageQueue)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		b.bury(gctx, garbage)
		return nil
	})
	g.Go(func() error {
		for {
			select {
			case <-gctx.Done():
				return nil
			case msg := <-incoming:
				b.hear(gctx, msg, garbage)
			case node := <-floods:
				b.log.Warn("a node sends too many heartbeats, what is too much is dropped", zap.String("node", printable(node)))
			}
		}
	})
	return g.Wait()
}

// garbageQueue holds beats that cannot be read until they are put to the dead letters. More are only counted.
const garbageQueue = 64

// refusedBeat is a beat that cannot be read, and why.
type refusedBeat struct {
	msg    *nats.Msg
	reason error
}

func (b *Beats) hear(ctx context.Context, msg *nats.Msg, garbage chan<- refusedBeat) {
	node, beat, err := decodeBeat(msg)
	if err == nil {
		b.handle(ctx, node, beat)
		return
	}
	if !offer(garbage, refusedBeat{msg, err}) {
		b.metrics.unburied.WithLabelValues(string(planeBeat)).Inc()
	}
}

// offer sends unless it would block, and reports whether it did.
func offer[T any](to chan<- T, item T) bool {
	select {
	case to <- item:
		return true
	default:
		return false
	}
}

// bury puts what cannot be read to the dead letters, apart from the loop that all beats go through.
func (b *Beats) bury(ctx context.Context, garbage <-chan refusedBeat) {
	for {
		select {
		case <-ctx.Done():
			return
		case bad := <-garbage:
			if err := b.dead.put(ctx, planeBeat, bad.msg.Subject, bad.msg.Header, bad.msg.Data, bad.reason); err != nil {
				b.log.Warn("dead letter not stored", zap.String("subject", printable(bad.msg.Subject)), zap.Error(err))
			}
		}
	}
}

func decodeBeat(msg *nats.Msg) (string, wire.Beat, error) {
	var beat wire.Beat
	node, err := parseBeat(msg.Subject)
	switch {
	case err != nil:
		return "", beat, permanent("%v", err)
	case len(msg.Data) > maxBeat:
		return node, beat, permanent("beat of %d bytes, at most %d", len(msg.Data), maxBeat)
	}
	return node, beat, DecodeRequest(msg.Data, &beat)
}
