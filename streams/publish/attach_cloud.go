package publish

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/read"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// createConsumerTimeout bounds the first attempt to create a node's consumer: if one of an earlier attach exists on a server that is
	// down, the request may not be answered.
	createConsumerTimeout = time.Second
	// deleteConsumerTimeout bounds the wait until the old consumer's server confirms the deletion, usually some milliseconds. If that server
	// is down, nobody does, and the consumer is gone as soon as the hub's leader has recorded that.
	deleteConsumerTimeout = 250 * time.Millisecond

	// maxInFlightPerNode is the number of messages in flight to one node. 256 fills a link of 100 ms round trip at 2,500/s.
	maxInFlightPerNode = 256
)

// AttacherConfig is what an Attacher asks and tells. No function may block for long: each attach calls them.
type AttacherConfig struct {
	// NodeExists reports whether Kubernetes has a Node of that name. Before the desired state of a node is published completely, only an
	// empty store of a node that Kubernetes does not know gets a full snapshot. It is required.
	NodeExists func(ctx context.Context, node string) bool
	// OnAttached is called after each successful attach; nil for none.
	OnAttached func(node, instance string)
	// RedialMax returns the longest pause between two dials, which the node is told; nil, or a result below a second, tells none.
	RedialMax func(ctx context.Context) time.Duration
}

// Attacher answers a node's attach: it sends the changes since the node's cursor and creates the consumer that delivers later changes.
type Attacher struct {
	cfg     AttacherConfig
	js      jetstream.JetStream
	streams desiredStreams
	metrics *metrics.Metrics
	log     *zap.Logger
}

// NewAttacher returns an Attacher that works over a connection to a hub with the given layout.
func NewAttacher(cfg AttacherConfig, nc *nats.Conn, layout subject.Layout, metrics *metrics.Metrics, log *zap.Logger) (*Attacher, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("attacher: %w", err)
	}
	return &Attacher{cfg: cfg, js: js, streams: desiredStreams{nc: nc, js: js, layout: layout}, metrics: metrics, log: log}, nil
}

// Handle is the CallHandler of VerbAttach.
func (a *Attacher) Handle(ctx context.Context, node string, request []byte) (any, error) {
	var req wire.AttachRequest
	if err := call.DecodeRequest(request, &req); err != nil {
		return nil, err
	}
	reply, err := a.handleAttach(ctx, node, req)
	if err != nil {
		a.metrics.Attaches.WithLabelValues("error").Inc()
		return nil, err
	}
	return reply, nil
}

func (a *Attacher) handleAttach(ctx context.Context, node string, req wire.AttachRequest) (wire.AttachReply, error) {
	sctx, cancel := context.WithTimeout(ctx, topology.StepTimeout)
	defer cancel()
	stream, err := lookUpStream(sctx, a.js, a.streams.layout.DesiredStream(node))
	if err != nil {
		return wire.AttachReply{}, fmt.Errorf("attach %s: %w", node, err)
	}
	failpoint.At("attach.asked")
	info := stream.CachedInfo()
	reply := wire.AttachReply{StreamEpoch: topology.StreamEpoch(info)}
	// A cursor beyond the end of the stream also belongs to another life: the stream was restored from an older copy.
	reply.Full = req.Full || req.StreamEpoch != reply.StreamEpoch || req.Sequence > info.State.LastSeq
	start := req.Sequence + 1
	if reply.Full {
		start = 1
		if reply.MarkerRequired, err = a.checkPrepared(sctx, stream, node, req.StreamEpoch == ""); err != nil {
			return wire.AttachReply{}, err
		}
	}
	if req.Continue != 0 {
		start = req.Continue
	}
	p, err := a.readSnapshotPage(ctx, node, start, max(req.UpTo, info.State.LastSeq), reply.Full, req.MaxBytes)
	if err != nil {
		return wire.AttachReply{}, fmt.Errorf("attach %s: %w", node, err)
	}
	failpoint.At("attach.paged")
	if req.MaxBytes > 0 {
		p = p.TruncateToFit(req.MaxBytes)
	}
	reply.Objects, reply.UpTo = p.Messages, p.UpTo
	if p.More && len(p.Messages) != 0 {
		reply.Continue = p.LastSequence + 1
		return reply, nil
	}
	if reply.Full && req.Continue != 0 {
		subjects, _, err := a.streams.reader(node).ListSubjects(ctx, subject.Filter(subject.Desired, node))
		if err != nil {
			return wire.AttachReply{}, fmt.Errorf("attach %s: %w", node, err)
		}
		reply.Subjects = len(subjects)
	}
	// The pages together reach as far as the replica that answered the last one; the consumer delivers messages that it had not seen.
	reply.UpTo = max(p.UpTo, start-1)
	if err := a.createConsumer(ctx, node, &reply, req.PayloadsPending || p.OmitsPayload()); err != nil {
		return reply, err
	}
	if a.cfg.RedialMax != nil {
		reply.RedialMax = int(a.cfg.RedialMax(ctx) / time.Second)
	}
	if a.cfg.OnAttached != nil {
		a.cfg.OnAttached(node, req.Instance)
	}
	return reply, nil
}

// readSnapshotPage reads one page of a snapshot. Any replica may answer for changes, because the consumer delivers the ones that are
// missing. An object missing from a full snapshot is deleted on the node, so such a page must come from a replica that has seen as much as
// the leader, and each page as much as the page before. Beyond 1,024 objects there is no such proof; the node counts the objects.
func (a *Attacher) readSnapshotPage(ctx context.Context, node string, start, atLeast uint64, full bool, take int) (read.SnapshotPage, error) {
	filter, bytes := subject.Filter(subject.Desired, node), read.PageBytes
	if take > 0 {
		bytes = min(bytes, max(2*take, read.MinPageRead)) // messages that do not fit are read again for the next page
	}
	reader := a.streams.reader(node)
	if full {
		p, err := reader.ReadAtLeast(ctx, []string{filter}, start, read.PageMessages, bytes, atLeast)
		if !errors.Is(err, read.ErrTooManySubjects) {
			return p, err
		}
	}
	return reader.ReadPage(ctx, filter, start, read.PageMessages, bytes)
}

// checkPrepared refuses a full snapshot while it may be incomplete, so that an emptied stream is never read as "delete all". It returns
// whether the snapshot must hold the marker. Only a node with an empty store that Kubernetes does not know yet needs no marker.
func (a *Attacher) checkPrepared(ctx context.Context, stream jetstream.Stream, node string, empty bool) (marked bool, err error) {
	if empty && !a.cfg.NodeExists(ctx, node) {
		return false, nil
	}
	marker, err := stream.GetLastMsgForSubject(ctx, subject.Of(subject.Desired, node, wire.SnapshotMarker()))
	switch {
	case topology.IsNotFound(err) || err == nil && marker.Header.Get(envelope.HeaderOp) != string(wire.Apply):
		return false, fmt.Errorf("attach %s: %w", node, ErrPreparing)
	case err != nil:
		return false, fmt.Errorf("attach %s: %w", node, err)
	}
	return true, nil
}

// ErrPreparing reports that a node's desired state is not yet published completely; the node attaches again.
var ErrPreparing = errors.New("the desired state of this node is being prepared")

// replaceConsumer deletes the consumer and creates another one. An unconfirmed deletion may not have been recorded when the creation arrives,
// which is refused then, so both are repeated for a while.
func (a *Attacher) replaceConsumer(ctx context.Context, stream, name string, create func(timeout time.Duration) error) error {
	ctx, cancel := context.WithTimeout(ctx, topology.StepTimeout)
	defer cancel()
	for {
		dctx, cancel := context.WithTimeout(ctx, deleteConsumerTimeout)
		deleted := a.js.DeleteConsumer(dctx, stream, name)
		cancel()
		failpoint.At("attach.forgotten")
		created := create(topology.StepTimeout)
		if created == nil || ctx.Err() != nil || !errors.Is(created, jetstream.ErrConsumerExists) {
			if created != nil {
				created = errors.Join(deleted, created)
			}
			return created
		}
	}
}

// createConsumer creates the node's consumer, which starts after the snapshot. It deletes an existing consumer even if that one starts
// there, which ends the requests open on it. The pull of an agent that is gone may stay open, because the server cannot see through an
// account import on another server whether there is a subscriber; messages sent to that pull would come again only after ackWait. awaits
// says that the node lacks payloads before the start of the consumer.
func (a *Attacher) createConsumer(ctx context.Context, node string, reply *wire.AttachReply, awaits bool) error {
	name, stream := wire.Escape(node), a.streams.layout.DesiredStream(node)
	cfg := topology.NodeConsumer(name, subject.Filter(subject.Desired, node), reply.UpTo, maxInFlightPerNode)
	cfg.Metadata = map[string]string{topology.MetadataAttach: rand.Text()}
	if awaits {
		cfg.Metadata[topology.MetadataAwaits] = "true"
	}
	create := func(timeout time.Duration) error {
		sctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return topology.RetryUnanswered(sctx, func(ctx context.Context) error {
			_, err := a.js.CreateConsumer(ctx, stream, cfg)
			return err
		})
	}
	if err := create(createConsumerTimeout); err != nil {
		// A consumer of an earlier attach exists, or its server is down. In the second case the deletion is never confirmed.
		if again := a.replaceConsumer(ctx, stream, name, create); again != nil {
			return fmt.Errorf("make the consumer of %s: %w", node, errors.Join(err, again))
		}
	}
	failpoint.At("attach.ready")
	reply.Stream, reply.Consumer, reply.Window = stream, name, maxInFlightPerNode
	result := "changes"
	if reply.Full {
		result = "full"
	}
	a.metrics.Attaches.WithLabelValues(result).Inc()
	a.log.Info("node attached", zap.String("node", node), zap.Bool("full", reply.Full), zap.Uint64("seq", reply.UpTo))
	return nil
}
