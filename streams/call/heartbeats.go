package call

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
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
)

const (
	// heartbeatPeriod is the period of a node's heartbeat: three may be lost within 30 s.
	heartbeatPeriod = 10 * time.Second
	// heartbeatSpacing is the least time between two heartbeats when the cursor moves: the cloud purges tombstones by the reported cursor.
	heartbeatSpacing = time.Second
	// maxHeartbeat bounds a heartbeat; one is some 200 bytes.
	maxHeartbeat = 4096
	// heartbeatQueue holds the heartbeats of all nodes until they are handled.
	heartbeatQueue = 4096
)

// Heartbeater sends a node's heartbeat: every 10 s, and within a second after its cursor or health changed or it was fenced. While the
// link is down the heartbeats are lost.
type Heartbeater struct {
	node    string
	nc      *nats.Conn
	compose func(census bool) wire.Heartbeat
	probes  chan string // buffered for a few: probes that are not answered yet
	log     *zap.Logger
}

// NewHeartbeater returns the heartbeat of a node; compose builds the current heartbeat, each 10 s with an inventory of the store, and must
// not block.
func NewHeartbeater(node string, nc *nats.Conn, compose func(census bool) wire.Heartbeat, log *zap.Logger) *Heartbeater {
	return &Heartbeater{node: node, nc: nc, compose: compose, probes: make(chan string, 4), log: log}
}

// AnswerProbe sends a heartbeat at once that repeats the cloud's probe. It does not block.
func (b *Heartbeater) AnswerProbe(question []byte) {
	if len(question) > maxProbe {
		return
	}
	select {
	case b.probes <- string(question):
	default:
	}
}

// maxProbe bounds the repeated text.
const maxProbe = 64

// Start sends heartbeats until ctx ends and then returns nil.
func (b *Heartbeater) Start(ctx context.Context) error {
	ticker := time.NewTicker(heartbeatSpacing)
	defer ticker.Stop()
	var last wire.Heartbeat
	var counted time.Time
	for {
		due := time.Since(counted) >= heartbeatPeriod
		beat := b.compose(due)
		if due || beat.Cursor != last.Cursor || beat.Healthy != last.Healthy || beat.Fenced != last.Fenced {
			if err := b.publishHeartbeat(beat); err != nil {
				b.log.Warn("beat not sent", zap.Error(err))
			}
			failpoint.At("ack.beaten")
			last = beat
			if due {
				counted = time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case question := <-b.probes:
			beat := b.compose(false)
			beat.Probe = question
			if err := b.publishHeartbeat(beat); err != nil {
				b.log.Warn("beat not sent", zap.Error(err))
			}
		case <-ticker.C:
		}
	}
}

func (b *Heartbeater) publishHeartbeat(beat wire.Heartbeat) error {
	body, err := json.Marshal(beat)
	if err != nil {
		return err
	}
	return b.nc.Publish(subject.HeartbeatSubject(b.node), body)
}

// Heartbeats receives the heartbeats of all nodes. Each cloudcore receives every heartbeat, except those of a node that sends more than
// five each second.
type Heartbeats struct {
	nc          *nats.Conn
	handle      func(ctx context.Context, node string, beat wire.Heartbeat)
	deadLetters *envelope.DeadLetterStore
	metrics     *metrics.Metrics
	log         *zap.Logger
}

// NewHeartbeats returns the listener; handle is called for one heartbeat after the other and must not block.
func NewHeartbeats(nc *nats.Conn, handle func(ctx context.Context, node string, beat wire.Heartbeat), metrics *metrics.Metrics, log *zap.Logger) (*Heartbeats, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("beats: %w", err)
	}
	return &Heartbeats{nc: nc, handle: handle, metrics: metrics, log: log, deadLetters: &envelope.DeadLetterStore{Js: js, Sender: CloudSender, Metrics: metrics, Log: log}}, nil
}

// Start listens until ctx ends and then returns nil.
func (b *Heartbeats) Start(ctx context.Context) error {
	incoming, floods := make(chan *nats.Msg, heartbeatQueue), make(chan string, malformedQueue)
	brakes := flow.NewNodeLimiter()
	// Heartbeats over the rate limit are dropped before the queue, where they would take the room of other nodes.
	sub, err := b.nc.Subscribe(subject.HeartbeatPrefix+subject.AllNodes, func(msg *nats.Msg) {
		node := flow.SubjectToken(msg.Subject, 1)
		switch pass, first := brakes.Allow(node, time.Now()); {
		case pass:
			trySend(incoming, msg)
			return
		case first:
			trySend(floods, node)
		}
		b.metrics.HeartbeatsDropped.Inc()
	})
	if err != nil {
		return fmt.Errorf("hear beats: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	garbage := make(chan malformedHeartbeat, malformedQueue)
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		b.storeDeadLetters(gctx, garbage)
		return nil
	})
	g.Go(func() error {
		for {
			select {
			case <-gctx.Done():
				return nil
			case msg := <-incoming:
				b.handleHeartbeat(gctx, msg, garbage)
			case node := <-floods:
				b.log.Warn("a node sends too many heartbeats, what is too much is dropped", zap.String("node", envelope.SanitizeText(node)))
			}
		}
	})
	return g.Wait()
}

// malformedQueue holds malformed heartbeats until they are stored as dead letters. Further ones are only counted.
const malformedQueue = 64

// malformedHeartbeat is a heartbeat that cannot be decoded, and the reason.
type malformedHeartbeat struct {
	msg    *nats.Msg
	reason error
}

func (b *Heartbeats) handleHeartbeat(ctx context.Context, msg *nats.Msg, garbage chan<- malformedHeartbeat) {
	node, beat, err := decodeHeartbeat(msg)
	if err == nil {
		b.handle(ctx, node, beat)
		return
	}
	if !trySend(garbage, malformedHeartbeat{msg, err}) {
		b.metrics.DeadLettersDropped.WithLabelValues(string(planeHeartbeat)).Inc()
	}
}

// trySend sends unless it would block, and reports whether it sent.
func trySend[T any](to chan<- T, item T) bool {
	select {
	case to <- item:
		return true
	default:
		return false
	}
}

// storeDeadLetters stores malformed heartbeats as dead letters, outside the loop that handles all heartbeats.
func (b *Heartbeats) storeDeadLetters(ctx context.Context, garbage <-chan malformedHeartbeat) {
	for {
		select {
		case <-ctx.Done():
			return
		case bad := <-garbage:
			if err := b.deadLetters.Put(ctx, planeHeartbeat, bad.msg.Subject, bad.msg.Header, bad.msg.Data, bad.reason); err != nil {
				b.log.Warn("dead letter not stored", zap.String("subject", envelope.SanitizeText(bad.msg.Subject)), zap.Error(err))
			}
		}
	}
}

func decodeHeartbeat(msg *nats.Msg) (string, wire.Heartbeat, error) {
	var beat wire.Heartbeat
	node, err := subject.ParseHeartbeatSubject(msg.Subject)
	switch {
	case err != nil:
		return "", beat, envelope.PermanentErrorf("%v", err)
	case len(msg.Data) > maxHeartbeat:
		return node, beat, envelope.PermanentErrorf("beat of %d bytes, at most %d", len(msg.Data), maxHeartbeat)
	}
	return node, beat, DecodeRequest(msg.Data, &beat)
}
