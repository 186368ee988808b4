// Package recovery makes the folder of a gateway's MQTT broker usable again after a power cut.
//
// The broker syncs what is stored once a second (docs/design/0040), and nats-server never syncs the files that say what a stream or consumer is. So a
// cut takes what was written last, and leaves files that nats-server cannot read: it then leaves out the stream with all that it holds. Files keeps
// synced copies and puts them back; Streams makes again what cannot be used. A sequence that was given out is never given out again: the gateway
// would take the new message for the one that it has recorded.
package recovery

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

// SkipSubject is a subject of the stream of messages in which nobody is interested: a message there only takes a sequence.
const SkipSubject = "frond.skip"

// codeConsumerStore is nats-server's code for a consumer whose files are unusable (server/errors.json).
const codeConsumerStore jetstream.ErrorCode = 10012

// Prepare makes the streams as configured, and the gateway's consumer, if Files names one, before any client has connected. It returns what identifies this life of the
// stream of messages; recorded is the last sequence of a life that the gateway has recorded, 0 for none.
func (f Files) Prepare(ctx context.Context, js jetstream.JetStream, streams []jetstream.StreamConfig, consumer jetstream.ConsumerConfig, recorded func(life string) uint64) (jetstream.Consumer, string, error) {
	for _, stream := range streams {
		if err := f.ensureStream(ctx, js, stream); err != nil {
			return nil, "", fmt.Errorf("stream %s of the MQTT broker: %w", stream.Name, err)
		}
	}
	stream, err := js.Stream(ctx, f.Stream)
	if err != nil {
		return nil, "", fmt.Errorf("stream of the MQTT broker: %w", err)
	}
	life := stream.CachedInfo().Created.UTC().Format(time.RFC3339Nano)
	skipped, err := skipTo(ctx, js, stream, recorded(life))
	if err != nil {
		return nil, "", fmt.Errorf("sequences of the MQTT broker: %w", err)
	}
	if skipped > 0 {
		f.Log.Warn("the MQTT broker has lost messages that the gateway has recorded", zap.Uint64("messages", skipped))
	}
	if f.Consumer == "" {
		return nil, life, f.save()
	}
	made, err := f.ensureConsumer(ctx, js, consumer)
	if err != nil {
		return nil, "", fmt.Errorf("consumer of the MQTT broker: %w", err)
	}
	return made, life, f.save()
}

// ensureStream makes a stream as configured. One that the server could not read is made again from its messages.
func (f Files) ensureStream(ctx context.Context, js jetstream.JetStream, cfg jetstream.StreamConfig) error {
	stream, err := js.Stream(ctx, cfg.Name)
	if err == nil {
		if err := f.removeConsumers(ctx, stream); err != nil {
			return fmt.Errorf("damaged consumers: %w", err)
		}
		_, err = js.UpdateStream(ctx, cfg)
		return err
	}
	if !errors.Is(err, jetstream.ErrStreamNotFound) {
		return err
	}
	damaged, err := f.setAside(cfg.Name)
	if err == nil {
		_, err = js.CreateStream(ctx, cfg)
	}
	if !damaged {
		return err
	}
	if err != nil {
		return errors.Join(err, f.putBack(cfg.Name))
	}
	f.Log.Warn("a damaged stream of the MQTT broker is made again from its messages", zap.String("stream", cfg.Name))
	return f.removeAside(cfg.Name)
}

// removeConsumers removes what is left on disk of consumers that the server could not read.
func (f Files) removeConsumers(ctx context.Context, stream jetstream.Stream) error {
	var has []string
	list := stream.ConsumerNames(ctx)
	for consumer := range list.Name() {
		has = append(has, consumer)
	}
	if err := list.Err(); err != nil {
		return err
	}
	return f.removeStray(stream.CachedInfo().Config.Name, has)
}

// ensureConsumer makes the gateway's consumer. If the server cannot use its files, it is made again and reads the stream from the beginning.
func (f Files) ensureConsumer(ctx context.Context, js jetstream.JetStream, cfg jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	made, err := js.CreateOrUpdateConsumer(ctx, f.Stream, cfg)
	if api, ok := errors.AsType[*jetstream.APIError](err); !ok || api.ErrorCode != codeConsumerStore {
		return made, err
	}
	if err := os.RemoveAll(f.consumerDir()); err != nil {
		return nil, fmt.Errorf("files of a damaged consumer: %w", err)
	}
	return js.CreateOrUpdateConsumer(ctx, f.Stream, cfg)
}

// maxPending bounds the messages of skipTo that are on their way to the server.
const maxPending = 1000

// skipTo makes a stream that has SkipSubject give out only sequences after the given one, and returns how many it skips. It keeps all messages.
func skipTo(ctx context.Context, js jetstream.JetStream, stream jetstream.Stream, sequence uint64) (skipped uint64, err error) {
	state := stream.CachedInfo().State
	if state.LastSeq >= sequence {
		return 0, nil
	}
	skipped = sequence - state.LastSeq
	if state.Msgs == 0 { // at once, however many there are
		return skipped, stream.Purge(ctx, jetstream.WithPurgeSequence(sequence+1))
	}
	for missing := skipped; missing > 0; {
		n := min(missing, maxPending)
		for range n - 1 {
			if err := js.Conn().Publish(SkipSubject, nil); err != nil {
				return 0, err
			}
		}
		if _, err := js.Publish(ctx, SkipSubject, nil); err != nil { // the server has the others, too
			return 0, err
		}
		missing -= n
	}
	return skipped, nil
}

// AwaitUnacknowledged waits until the messages that were on their way when the gateway ended can be delivered again, after ackWait. They come before
// newer ones then, in their order.
func AwaitUnacknowledged(ctx context.Context, consumer jetstream.Consumer, ackWait time.Duration) error {
	if consumer.CachedInfo().NumAckPending == 0 {
		return nil
	}
	select {
	case <-time.After(ackWait + redeliveryMargin):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// redeliveryMargin is the time in which nats-server notices that ackWait has passed.
const redeliveryMargin = 500 * time.Millisecond
