package streams

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

// EnsureLeaf makes a node's own JetStream hold Leaf, whatever a bad disk did to its files: a stream that the server cannot
// use is made anew with what can still be read of it. Reports that are lost with it are made again at the next link-up.
func EnsureLeaf(ctx context.Context, js jetstream.JetStream, log *zap.Logger) error {
	all := LeafTopology()
	for i, stream := range all.Streams {
		one := Topology{Streams: all.Streams[i : i+1]}
		for _, c := range all.Consumers {
			if c.Stream == stream.Name {
				one.Consumers = append(one.Consumers, c)
			}
		}
		err := Ensure(ctx, js, one)
		if err == nil || !isUnusable(err) {
			if err != nil {
				return err
			}
			continue
		}
		log.Error("stream damaged on disk, making it anew", zap.String("stream", stream.Name), zap.Error(err))
		if err := rebuildStream(ctx, js, one, log); err != nil {
			return fmt.Errorf("make damaged stream %s anew: %w", stream.Name, err)
		}
	}
	return nil
}

// Codes of nats-server (server/errors.json).
const (
	codeConsumerStore jetstream.ErrorCode = 10012 // the consumer's files cannot be used
	codeStreamOffline jetstream.ErrorCode = 10194 // the stream's files say something that the server does not know
	codeStreamCreate  jetstream.ErrorCode = 10049 // the stream's files cannot be used
)

func isUnusable(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == codeConsumerStore || api.ErrorCode == codeStreamOffline || api.ErrorCode == codeStreamCreate)
}

// rebuildStream deletes a stream and makes it again with what it held.
func rebuildStream(ctx context.Context, js jetstream.JetStream, one Topology, log *zap.Logger) error {
	name := one.Streams[0].Name
	rescued := salvageMessages(ctx, js, name)
	if err := js.DeleteStream(ctx, name); err != nil && !isNotFound(err) {
		return err
	}
	// Its sequences order the reports of an object and name them to the hub, so they must be new ones. Milliseconds are
	// ahead of what a node can have counted to.
	one.Streams[0].FirstSeq = uint64(time.Now().UnixMilli())
	if err := Ensure(ctx, js, one); err != nil {
		return err
	}
	for _, m := range rescued {
		if _, err := js.PublishMsg(ctx, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}); err != nil {
			return err
		}
	}
	log.Info("damaged stream made anew", zap.String("stream", name), zap.Int("rescued", len(rescued)))
	return nil
}

// salvageMessages reads what the server can still read of a stream, oldest first.
func salvageMessages(ctx context.Context, js jetstream.JetStream, name string) []*jetstream.RawStreamMsg {
	stream, err := js.Stream(ctx, name)
	if err != nil {
		return nil
	}
	var list []*jetstream.RawStreamMsg
	state := stream.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq && uint64(len(list)) < state.Msgs; seq++ {
		m, err := stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(">"))
		if err != nil {
			break
		}
		list, seq = append(list, m), m.Sequence
	}
	return list
}
