// Package consume reads the nodes' reports and events from the hub and hands them to the controllers: per object in order, fairly between
// nodes, and acked when the handler accepted them. What can never be handled becomes a dead letter.
package consume

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/failpoint"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/chunk"
	"github.com/frond-edge/frond/streams/internal/envelope"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/internal/read"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// reportWorkers is how many reports one cloudcore applies at once; each waits for one or two API calls.
	reportWorkers = 64
	// handleTimeout bounds one report: an API call with its retries.
	handleTimeout = 25 * time.Second
	// askTimeout bounds a request to the stream: a request that was lost with its server is repeated soon, and not at the end of
	// handleTimeout.
	askTimeout = 4 * time.Second
	// reportPull is how many reports are requested ahead.
	reportPull = 256
	// maxQueuedReports limits the reports that one process holds, maxQueuedReportsPerNode those of one node: more than all pods of a usual
	// gateway.
	maxQueuedReports        = 2048
	maxQueuedReportsPerNode = 128
	// reportWorkersPerNode is how many workers serve one node at a time.
	reportWorkersPerNode = 4
	// inProgressPeriod is the period of progress acks, which keep held reports from being redelivered: three may be lost within
	// reportAckWait.
	inProgressPeriod = 3 * time.Second
	// deferDelay is how long a report is deferred when its node has reached its limit.
	deferDelay = time.Second
)

// ReportHandler applies one report to Kubernetes. nil means that the report is applied, or rightly dropped. A report whose error wraps
// wire.ErrPermanent goes to the dead letters. One whose error wraps wire.ErrRefused is retried for ten minutes, unless too many objects of
// the node are refused, and then goes there too. After any other error the report is retried without limit.
type ReportHandler func(ctx context.Context, m wire.Message) error

// ReportConsumer passes the reports of nodes to a handler. All cloudcores share one consumer per stream, so each report goes to one of
// them; reports of one object that reach this process are handled one after the other. Per node, one process holds at most 128 reports or
// 16 MiB of them, uses at most four workers, and defers at most 2,048 objects or 16,384 events. Further ones are dropped.
type ReportConsumer struct {
	*LatestReports
	overflow    *flow.OverflowTracker
	handle      ReportHandler
	gaveUp      func(m wire.Message)
	retries     *flow.RetryBudget
	codec       *envelope.Codec
	chunks      *chunk.Store
	deadLetters *envelope.DeadLetterStore
	metrics     *metrics.Metrics
	log         *zap.Logger
}

// NewReportConsumer returns the consumer of a plane, Report or Event. gaveUp is called with each report that Kubernetes refused for too
// long, after it became a dead letter, and with the node and key of each report that was dropped as overflow. The node should be asked for
// the object again, later. gaveUp must not block.
func NewReportConsumer(plane subject.Plane, nc *nats.Conn, handle ReportHandler, gaveUp func(m wire.Message), metrics *metrics.Metrics, log *zap.Logger) (*ReportConsumer, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("reports: %w", err)
	}
	codec, err := envelope.NewCodec()
	if err != nil {
		return nil, err
	}
	parts, err := chunk.NewStore(nc, log)
	if err != nil {
		return nil, err
	}
	stream, most, waiting := subject.ReportStream, topology.ReportWindow/4, flow.MaxDeferredReports
	if plane == subject.Event {
		stream, most, waiting = subject.EventStream, topology.EventWindow/4, flow.MaxDeferredEvents
	}
	return &ReportConsumer{
		LatestReports: &LatestReports{plane: plane, stream: stream, js: js}, overflow: flow.NewOverflowTracker(waiting), handle: handle, gaveUp: gaveUp, retries: flow.NewRetryBudget(most),
		codec: codec, chunks: parts, metrics: metrics, log: log,
		deadLetters: &envelope.DeadLetterStore{Js: js, Sender: call.CloudSender, Metrics: metrics, Log: log},
	}, nil
}

// LatestReports tells which reports of a plane are still the newest of their objects.
type LatestReports struct {
	plane  subject.Plane
	stream string
	js     jetstream.JetStream
}

// NewLatestReports returns the LatestReports of a plane, Report or Event.
func NewLatestReports(plane subject.Plane, nc *nats.Conn) (*LatestReports, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("reports: %w", err)
	}
	stream := subject.ReportStream
	if plane == subject.Event {
		stream = subject.EventStream
	}
	return &LatestReports{plane: plane, stream: stream, js: js}, nil
}

// StillLast asks the stream whether a report is still the newest of its object. It is not if it was replaced, or if another cloudcore has
// handled it. A missing message proves neither: the consumer's server may deliver it before the server that answers has it. So "no" needs
// the answer of a server that is past it; without one StillLast returns an error and the caller asks again.
func (r *LatestReports) StillLast(ctx context.Context, m wire.Message) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	stream, err := r.js.Stream(ctx, r.stream)
	if err != nil {
		return false, fmt.Errorf("still last: %w", err)
	}
	if _, err = stream.GetMsg(ctx, m.Sequence); err == nil {
		return true, nil
	} else if !topology.IsNotFound(err) {
		return false, fmt.Errorf("still last: %w", err)
	}
	subj := subject.Of(r.plane, m.Node, m.Key)
	last, err := stream.GetLastMsgForSubject(ctx, subj)
	switch {
	case err == nil && last.Sequence > m.Sequence:
		return false, nil
	case err == nil:
		return false, fmt.Errorf("still last: message %d: %w", m.Sequence, read.ErrReplicaLags)
	case !topology.IsNotFound(err):
		return false, fmt.Errorf("still last: %w", err)
	}
	// The object has no message at all: it was handled, provided that the answering server has seen it. One answer tells both.
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subj))
	switch {
	case err != nil:
		return false, fmt.Errorf("still last: %w", err)
	case info.State.LastSeq < m.Sequence || len(info.State.Subjects) != 0:
		return false, fmt.Errorf("still last: message %d: %w", m.Sequence, read.ErrReplicaLags)
	}
	return false, nil
}

// Start handles reports until ctx ends and then returns nil, after the handlers have returned. The reports that they held are redelivered
// to another cloudcore.
func (r *ReportConsumer) Start(ctx context.Context) error {
	retry := flow.NewRetryBackoff()
	for ctx.Err() == nil {
		began := time.Now()
		err := r.runSession(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // we were asked to stop
		}
		if time.Since(began) > flow.StableSession {
			retry = flow.NewRetryBackoff()
		}
		delay := retry.Step()
		r.log.Warn("reading reports interrupted", zap.String("stream", r.stream), zap.Duration("retry", delay), zap.Error(err))
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
	return nil
}

func (r *ReportConsumer) runSession(ctx context.Context) error {
	consumer, err := topology.FindCloudConsumer(ctx, r.js, r.stream)
	if err != nil {
		return fmt.Errorf("consumer of %s: %w", r.stream, err)
	}
	held := flow.NewFairQueue[jetstream.Msg](maxQueuedReports, maxQueuedReportsPerNode, reportWorkersPerNode)
	faults := make(chan error, 1) // the first fault ends the session
	consuming, err := consumer.Consume(
		func(msg jetstream.Msg) {
			subj, node := msg.Subject(), flow.SubjectToken(msg.Subject(), 1)
			if held.Push(flow.ItemOrigin{Node: node, Object: subj, Size: flow.MemorySize(msg.Headers(), msg.Data())}, msg) {
				r.overflow.AdmitMessage(node, subj)
			} else {
				r.deferReport(node, msg)
			}
		},
		jetstream.PullMaxMessages(reportPull), jetstream.PullHeartbeat(topology.PullHeartbeat), jetstream.PullExpiry(topology.PullExpiry),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			if errors.Is(err, jetstream.ErrNoHeartbeat) || errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) {
				select {
				case faults <- err:
				default:
				}
			}
		}))
	if err != nil {
		return fmt.Errorf("pull from %s: %w", r.stream, err)
	}
	g, gctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(gctx, held.Close)
	defer stop()
	g.Go(func() error {
		keepAlive(gctx, held)
		return nil
	})
	for range reportWorkers {
		g.Go(func() error {
			for {
				msg, ok := held.Pop()
				if !ok {
					return nil
				}
				r.handleMessage(gctx, held, msg)
			}
		})
	}
	g.Go(func() error {
		defer func() {
			consuming.Stop()
			<-consuming.Closed()
		}()
		select {
		case <-gctx.Done():
			return nil
		case err := <-faults:
			return err
		}
	})
	err = g.Wait()
	for _, msg := range held.HeldItems() {
		_ = msg.Nak() // otherwise another cloudcore receives it a little later
	}
	return err
}

// keepAlive sends progress acks for the held reports.
func keepAlive(ctx context.Context, held *flow.FairQueue[jetstream.Msg]) {
	ticker := time.NewTicker(inProgressPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, msg := range held.HeldItems() {
			_ = msg.InProgress() // it is settled, or the hub is unreachable: then another cloudcore may have it
		}
	}
}

// deferReport returns a report to the stream for a moment, because its node has reached its limit, or drops it, because the node floods
// the stream.
func (r *ReportConsumer) deferReport(node string, msg jetstream.Msg) {
	result, settle := "crowded", func() error { return msg.NakWithDelay(deferDelay) }
	over, first := r.overflow.DeferMessage(node, msg.Subject(), time.Now())
	if over {
		result, settle = "flooded", msg.Term
		// The node may be honest, with very many objects: gaveUp has it asked for the current state of this one, later.
		if _, node, key, err := subject.Parse(msg.Subject()); err == nil && r.gaveUp != nil {
			r.gaveUp(wire.Message{Node: node, Key: key})
		}
	}
	if first {
		r.log.Warn("a node floods the stream, what is too much is dropped", zap.String("node", node), zap.String("stream", r.stream))
	}
	r.metrics.Reports.WithLabelValues(string(r.plane), result).Inc()
	if err := settle(); err != nil {
		r.log.Warn("report not put off", zap.String("subject", msg.Subject()), zap.Error(err))
	}
}

// handleMessage handles one message; acks are sent here only.
func (r *ReportConsumer) handleMessage(ctx context.Context, held *flow.FairQueue[jetstream.Msg], msg jetstream.Msg) {
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	result, settle := r.evaluateReport(ctx, msg)
	held.Done(msg)
	r.metrics.Reports.WithLabelValues(string(r.plane), result).Inc()
	if err := settle(); err != nil {
		r.log.Warn("report not settled", zap.String("subject", msg.Subject()), zap.String("result", result), zap.Error(err))
	} else if result != "retry" {
		r.chunks.DeleteParts(ctx, msg)
	}
}

// evaluateReport runs the handler and returns how to settle the message.
func (r *ReportConsumer) evaluateReport(ctx context.Context, msg jetstream.Msg) (result string, settle func() error) {
	meta, err := msg.Metadata()
	if err != nil {
		return "garbage", msg.Term
	}
	again := func() error { return msg.NakWithDelay(nakDelay(meta.NumDelivered)) }
	m, err := r.decodeReport(ctx, msg, meta.NumDelivered)
	if err == nil {
		m.Sequence = meta.Sequence.Stream
		failpoint.At("report.taken")
		err = r.handle(ctx, m)
		failpoint.At("report.applied")
	}
	result = "dead"
	switch {
	case err == nil:
		r.retries.Reset(m.Node, msg.Subject())
		if msg.Headers().Get(envelope.HeaderParts) != "" {
			return "ok", func() error { return msg.DoubleAck(ctx) } // its parts are deleted only after the ack
		}
		return "ok", msg.Ack
	case errors.Is(err, wire.ErrPermanent):
		r.retries.Reset(m.Node, msg.Subject())
	case errors.Is(err, wire.ErrRefused):
		if reason := r.retries.RecordRefusal(m.Node, msg.Subject(), time.Now()); reason != nil {
			result, err = "refused", fmt.Errorf("%w: %w", reason, err)
			break
		}
		fallthrough
	default:
		r.log.Info("report tried again", zap.String("subject", msg.Subject()), zap.Uint64("attempt", meta.NumDelivered), zap.Error(err))
		return "retry", again
	}
	if err := r.deadLetters.Put(ctx, r.plane, msg.Subject(), msg.Headers(), msg.Data(), err); err != nil {
		r.log.Warn("dead letter not stored", zap.String("subject", msg.Subject()), zap.Error(err))
		return "retry", again
	}
	if (result == "refused" || errors.Is(err, chunk.ErrIncomplete)) && r.gaveUp != nil {
		r.gaveUp(m)
	}
	return result, msg.Term
}

// decodeReport decodes a report. If its payload stays missing, the report was lost with its parts.
func (r *ReportConsumer) decodeReport(ctx context.Context, msg jetstream.Msg, attempt uint64) (wire.Message, error) {
	payload, err := r.chunks.LoadPayload(ctx, msg)
	if err == nil {
		return r.codec.Decode(msg.Subject(), msg.Headers(), payload)
	}
	m, garbage := envelope.DecodeHeader(msg.Subject(), msg.Headers())
	switch {
	case garbage != nil:
		return m, garbage
	case errors.Is(err, chunk.ErrIncomplete) && attempt >= chunk.IncompleteAttempts:
		return m, fmt.Errorf("%w: %w", wire.ErrPermanent, err)
	}
	return m, err
}

// nakDelay grows from 200 ms to 30 s with the attempts.
func nakDelay(attempt uint64) time.Duration {
	b := wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 9, Cap: 30 * time.Second}
	var d time.Duration
	for range min(attempt, 9) {
		d = b.Step()
	}
	return d
}
