package streams

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

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
)

// Beater sends a node's heartbeat: every 10 s, and within a second after its cursor or health has changed. While the link
// is down nobody hears it.
type Beater struct {
	node    string
	nc      *nats.Conn
	compose func() wire.Beat
	log     *zap.Logger
}

// NewBeater makes the heartbeat of a node; compose gives the beat of this moment and must not block.
func NewBeater(node string, nc *nats.Conn, compose func() wire.Beat, log *zap.Logger) *Beater {
	return &Beater{node: node, nc: nc, compose: compose, log: log}
}

// Start beats until ctx ends and then returns nil.
func (b *Beater) Start(ctx context.Context) error {
	ticker := time.NewTicker(beatSpacing)
	defer ticker.Stop()
	var last wire.Beat
	var sent time.Time
	for {
		beat := b.compose()
		if beat.Cursor != last.Cursor || beat.Healthy != last.Healthy || time.Since(sent) >= beatPeriod {
			if err := b.send(beat); err != nil {
				b.log.Warn("beat not sent", zap.Error(err))
			}
			crash.At("ack.beaten")
			last, sent = beat, time.Now()
		}
		select {
		case <-ctx.Done():
			return nil
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

// Beats hears the heartbeats of all nodes. Each cloudcore hears each of them.
type Beats struct {
	nc     *nats.Conn
	handle func(ctx context.Context, node string, beat wire.Beat)
	dead   *deadLetters
	log    *zap.Logger
}

// NewBeats makes the listener; handle is called for one beat after the other and must not block.
func NewBeats(nc *nats.Conn, handle func(ctx context.Context, node string, beat wire.Beat), metrics *Metrics, log *zap.Logger) (*Beats, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("beats: %w", err)
	}
	return &Beats{nc: nc, handle: handle, log: log, dead: &deadLetters{js: js, from: cloudFrom, metrics: metrics, log: log}}, nil
}

// Start listens until ctx ends and then returns nil.
func (b *Beats) Start(ctx context.Context) error {
	incoming := make(chan *nats.Msg, callQueue)
	sub, err := b.nc.ChanSubscribe(beatPrefix+allNodes, incoming)
	if err != nil {
		return fmt.Errorf("hear beats: %w", err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the connection is gone
	for {
		select {
		case <-ctx.Done():
			return nil
		case msg := <-incoming:
			node, beat, err := decodeBeat(msg)
			if err == nil {
				b.handle(ctx, node, beat)
				continue
			}
			if err := b.dead.put(ctx, planeBeat, msg.Subject, msg.Header, msg.Data, err); err != nil {
				b.log.Warn("dead letter not stored", zap.String("subject", printable(msg.Subject)), zap.Error(err))
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
