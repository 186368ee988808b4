package telemetry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/lines"
	"github.com/frond-edge/frond/streams/internal/read"
	"github.com/frond-edge/frond/streams/internal/shares"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// concurrentBatches bounds the batches that one cloudcore stores at a time: a stream takes 50 of all of them (nats-server 2.15,
	// streamDefaultMaxAtomicBatchInflightPerStream).
	concurrentBatches = 10
	// cachedPositions and positionTTL bound the positions of nodes that a cloudcore remembers. One that is outdated costs one more request.
	cachedPositions = 100_000
	positionTTL     = 10 * time.Minute
)

// errOvertaken says that another cloudcore has stored samples of the node meanwhile.
var errOvertaken = errors.New("another cloudcore was first")

// IsAssigned reports whether Kubernetes assigns a device to a node. It does no I/O.
type IsAssigned func(ctx context.Context, node, namespace, device string) (bool, error)

// position is how far the hub has a node's samples.
type position struct {
	run string
	// number is the last sample's, sequence that of its message in the stream; both 0 without one.
	number, sequence uint64
}

// Receiver stores what nodes send of one kind in the hub's stream, each once and in order, whichever cloudcore gets them.
type Receiver struct {
	kind   lines.Kind
	nc     *nats.Conn
	reader *read.StreamReader
	codec  *lines.Codec
	// isAssigned is nil for kinds that belong to no device.
	isAssigned  IsAssigned
	positions   *cache.LRUExpireCache // by node
	slots       chan struct{}
	deadLetters *envelope.DeadLetterStore
	shares      *shares.Shares
	metrics     *ReceiverMetrics
	log         *zap.Logger
}

// NewReceiver returns a Receiver of samples over a connection to the hub.
func NewReceiver(nc *nats.Conn, isAssigned IsAssigned, own *ReceiverMetrics, common *metrics.Metrics, log *zap.Logger) (*Receiver, error) {
	return newReceiver(lines.Samples(), nc, isAssigned, own, common, log)
}

// NewMessageReceiver returns a Receiver of messages over a connection to the hub.
func NewMessageReceiver(nc *nats.Conn, own *ReceiverMetrics, common *metrics.Metrics, log *zap.Logger) (*Receiver, error) {
	return newReceiver(lines.Messages(), nc, nil, own, common, log)
}

func newReceiver(kind lines.Kind, nc *nats.Conn, isAssigned IsAssigned, own *ReceiverMetrics, common *metrics.Metrics, log *zap.Logger) (*Receiver, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	c, err := lines.NewCodec()
	if err != nil {
		return nil, err
	}
	return &Receiver{
		kind: kind, nc: nc, reader: &read.StreamReader{Nc: nc, Js: js, Stream: kind.HubStream}, codec: c, isAssigned: isAssigned,
		positions: cache.NewLRUExpireCache(cachedPositions), slots: make(chan struct{}, concurrentBatches),
		deadLetters: &envelope.DeadLetterStore{Js: js, Sender: call.CloudSender, Metrics: common, Log: log}, metrics: own, log: log,
		shares: shares.New(shares.Config{Stream: kind.HubStream, All: ">", Filter: kind.All, NodeOf: subject.NodeOf}, js, own.Trimmed, log),
	}, nil
}

// Handle is the call.Handler of the kind's verb.
func (r *Receiver) Handle(ctx context.Context, node string, request []byte) (any, error) {
	run, records, err := lines.ParseRequest(request)
	if err != nil {
		return nil, err
	}
	list, err := r.codec.Decode(records)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, envelope.PermanentErrorf("no %s", r.kind.Noun)
	}
	if err := lines.CheckLines(list, r.kind.Check); err != nil {
		return nil, err
	}
	own, foreign, err := r.split(ctx, node, list)
	if err != nil {
		return nil, err
	}
	stored, err := r.store(ctx, node, run, own)
	if err != nil {
		return nil, err
	}
	if err := r.refuse(ctx, node, run, foreign); err != nil {
		return nil, err
	}
	r.metrics.Samples.WithLabelValues("stored").Add(float64(stored))
	r.metrics.Samples.WithLabelValues("repeated").Add(float64(len(own) - stored))
	return lines.Reply{Number: list[len(list)-1].Number, Refused: len(foreign)}, nil
}

// split separates the samples of devices that are not the node's.
func (r *Receiver) split(ctx context.Context, node string, list []lines.Line) (own, foreign []lines.Line, err error) {
	if r.isAssigned == nil {
		return list, nil, nil
	}
	type device struct{ namespace, name string }
	known := map[device]bool{}
	for _, l := range list {
		d := device{l.Namespace, l.Device}
		assigned, ok := known[d]
		if !ok {
			if assigned, err = r.isAssigned(ctx, node, l.Namespace, l.Device); err != nil {
				return nil, nil, fmt.Errorf("node of device %s/%s: %w", l.Namespace, l.Device, err)
			}
			known[d] = assigned
		}
		if assigned {
			own = append(own, l)
		} else {
			foreign = append(foreign, l)
		}
	}
	return own, foreign, nil
}

// refuse stores samples of foreign devices as one dead letter.
func (r *Receiver) refuse(ctx context.Context, node, run string, foreign []lines.Line) error {
	if len(foreign) == 0 {
		return nil
	}
	r.metrics.Samples.WithLabelValues("foreign").Add(float64(len(foreign)))
	data, _, err := r.codec.Encode(foreign)
	if err != nil {
		return err
	}
	first := foreign[0]
	reason := fmt.Errorf("%w: %d samples of devices that Kubernetes does not assign to the node %s, the first of %s/%s", wire.ErrPermanent, len(foreign), node, first.Namespace, first.Device)
	header := nats.Header{"Content-Encoding": {"zstd"}, lines.HeaderRun: {run}, lines.HeaderNumber: {strconv.FormatUint(first.Number, 10)}}
	return r.deadLetters.Put(ctx, r.kind.Plane, r.kind.All(node), header, data, reason)
}

// store stores the samples that the hub does not have, and returns their number.
func (r *Receiver) store(ctx context.Context, node, run string, list []lines.Line) (int, error) {
	if len(list) == 0 {
		return 0, nil
	}
	at, cached, err := r.position(ctx, node)
	if err != nil {
		return 0, err
	}
	for {
		missing := list
		if at.run == run {
			missing = after(list, at.number)
		}
		if len(missing) == 0 {
			return 0, nil
		}
		sequence, size, err := r.publish(ctx, node, run, at.sequence, missing)
		switch {
		case err == nil:
			r.positions.Add(node, position{run: run, number: missing[len(missing)-1].Number, sequence: sequence}, positionTTL)
			r.shares.Wrote(ctx, node, uint64(len(missing)), size)
			return len(missing), nil
		case !errors.Is(err, errOvertaken) || !cached:
			r.positions.Remove(node)
			return 0, err
		}
		cached = false
		if at, err = r.readPosition(ctx, node); err != nil {
			return 0, err
		}
	}
}

// after returns the lines with higher numbers.
func after(list []lines.Line, number uint64) []lines.Line {
	for i := range list {
		if list[i].Number > number {
			return list[i:]
		}
	}
	return nil
}

// position returns how far the hub has a node's samples, as far as this cloudcore knows.
func (r *Receiver) position(ctx context.Context, node string) (at position, cached bool, err error) {
	if known, ok := r.positions.Get(node); ok {
		return known.(position), true, nil
	}
	at, err = r.readPosition(ctx, node)
	return at, false, err
}

// readPosition asks the stream's leader.
func (r *Receiver) readPosition(ctx context.Context, node string) (position, error) {
	last, err := r.reader.ReadLastOf(ctx, r.kind.All(node))
	switch {
	case topology.IsNotFound(err):
		return position{}, nil
	case err != nil:
		return position{}, fmt.Errorf("position of %s: %w", node, err)
	}
	header := nats.Header(last.Header)
	number, err := strconv.ParseUint(header.Get(lines.HeaderNumber), 10, 64)
	if err != nil {
		r.log.Warn("a message in the stream has no number", zap.String("node", node), zap.Uint64("sequence", last.Sequence))
	}
	return position{run: header.Get(lines.HeaderRun), number: number, sequence: last.Sequence}, nil
}
