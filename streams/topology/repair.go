package topology

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

// EnsureLeaf makes a node's own JetStream hold LeafTopology, whatever a bad disk did to its files. A stream that the server cannot use is
// created anew with the messages that can still be read. The node creates reports that are lost with it again at the next link-up.
func EnsureLeaf(ctx context.Context, js jetstream.JetStream, log *zap.Logger) error {
	all := LeafTopology()
	for i, stream := range all.Streams {
		one := Topology{Streams: all.Streams[i : i+1]}
		for _, c := range all.Consumers {
			if c.Stream == stream.Name {
				one.Consumers = append(one.Consumers, c)
			}
		}
		if err := EnsureStream(ctx, js, one, log); err != nil {
			return err
		}
	}
	return nil
}

// EnsureStream is Ensure for a topology of one stream of a node's own JetStream. A stream that the server cannot use is created anew with
// the messages that can still be read.
func EnsureStream(ctx context.Context, js jetstream.JetStream, one Topology, log *zap.Logger) error {
	err := Ensure(ctx, js, one)
	if err == nil || !isUnusable(err) {
		return err
	}
	name := one.Streams[0].Name
	log.Error("stream damaged on disk, creating it again", zap.String("stream", name), zap.Error(err))
	if err := rebuildStream(ctx, js, one, log); err != nil {
		return fmt.Errorf("create damaged stream %s again: %w", name, err)
	}
	return nil
}

// Codes of nats-server (server/errors.json).
const (
	codeConsumerStore jetstream.ErrorCode = 10012 // the consumer's files are unusable
	codeStreamOffline jetstream.ErrorCode = 10194 // the stream's files contain something that the server does not know
	codeStreamCreate  jetstream.ErrorCode = 10049 // the stream's files are unusable
)

func isUnusable(err error) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && (api.ErrorCode == codeConsumerStore || api.ErrorCode == codeStreamOffline || api.ErrorCode == codeStreamCreate)
}

// rebuildStream deletes a stream and creates it again with the messages that it held.
func rebuildStream(ctx context.Context, js jetstream.JetStream, one Topology, log *zap.Logger) error {
	name := one.Streams[0].Name
	rescued := salvageMessages(ctx, js, name)
	if err := js.DeleteStream(ctx, name); err != nil && !IsNotFound(err) {
		return err
	}
	// Its sequences order the reports of an object and identify them to the hub, so they must be new ones. Milliseconds are ahead of any
	// count that a node can have reached.
	one.Streams[0].FirstSeq = uint64(time.Now().UnixMilli())
	if err := Ensure(ctx, js, one); err != nil {
		return err
	}
	for _, m := range rescued {
		if _, err := js.PublishMsg(ctx, &nats.Msg{Subject: m.Subject, Header: m.Header, Data: m.Data}); err != nil {
			return err
		}
	}
	log.Info("damaged stream created again", zap.String("stream", name), zap.Int("rescued", len(rescued)))
	return nil
}

// salvageMessages returns the messages of a stream that the server can still read, oldest first.
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
