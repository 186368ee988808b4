package streams

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
	plane       Plane
	stream      string
	overflow    *overflowTracker
	js          jetstream.JetStream
	handle      ReportHandler
	gaveUp      func(m wire.Message)
	retries     *retryBudget
	codec       *codec
	chunks      *ChunkStore
	deadLetters *deadLetterStore
	metrics     *Metrics
	log         *zap.Logger
}

// NewReportConsumer returns the consumer of a plane, Report or Event. gaveUp is called with each report that Kubernetes refused for too
// long, after it became a dead letter, and with the node and key of each report that was dropped as overflow. The node should be asked for
// the object again, later. gaveUp must not block.
func NewReportConsumer(plane Plane, nc *nats.Conn, handle ReportHandler, gaveUp func(m wire.Message), metrics *Metrics, log *zap.Logger) (*ReportConsumer, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("reports: %w", err)
	}
	codec, err := newCodec()
	if err != nil {
		return nil, err
	}
	parts, err := NewChunkStore(nc, log)
	if err != nil {
		return nil, err
	}
	stream, most, waiting := ReportStream, reportWindow/4, maxDeferredReports
	if plane == Event {
		stream, most, waiting = EventStream, eventWindow/4, maxDeferredEvents
	}
	return &ReportConsumer{
		plane: plane, stream: stream, overflow: newOverflowTracker(waiting), js: js, handle: handle, gaveUp: gaveUp, retries: newRetryBudget(most),
		codec: codec, chunks: parts, metrics: metrics, log: log,
		deadLetters: &deadLetterStore{js: js, sender: cloudSender, metrics: metrics, log: log},
	}, nil
}

// StillLast asks the stream whether a report is still the newest of its object. It is not if it was replaced, or if another cloudcore has
// handled it. A missing message proves neither: the consumer's server may deliver it before the server that answers has it. So "no" needs
// the answer of a server that is past it; without one StillLast returns an error and the caller asks again.
func (r *ReportConsumer) StillLast(ctx context.Context, m wire.Message) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	stream, err := r.js.Stream(ctx, r.stream)
	if err != nil {
		return false, fmt.Errorf("still last: %w", err)
	}
	if _, err = stream.GetMsg(ctx, m.Sequence); err == nil {
		return true, nil
	} else if !isNotFound(err) {
		return false, fmt.Errorf("still last: %w", err)
	}
	subject := Subject(r.plane, m.Node, m.Key)
	last, err := stream.GetLastMsgForSubject(ctx, subject)
	switch {
	case err == nil && last.Sequence > m.Sequence:
		return false, nil
	case err == nil:
		return false, fmt.Errorf("still last: message %d: %w", m.Sequence, errReplicaLags)
	case !isNotFound(err):
		return false, fmt.Errorf("still last: %w", err)
	}
	// The object has no message at all: it was handled, provided that the answering server has seen it. One answer tells both.
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
	switch {
	case err != nil:
		return false, fmt.Errorf("still last: %w", err)
	case info.State.LastSeq < m.Sequence || len(info.State.Subjects) != 0:
		return false, fmt.Errorf("still last: message %d: %w", m.Sequence, errReplicaLags)
	}
	return false, nil
}

// errReplicaLags reports that a server has not yet seen messages that others have; it will in a moment.
var errReplicaLags = errors.New("the server that answered lags behind")

// Start handles reports until ctx ends and then returns nil, after the handlers have returned. The reports that they held are redelivered
// to another cloudcore.
func (r *ReportConsumer) Start(ctx context.Context) error {
	retry := newRetryBackoff()
	for ctx.Err() == nil {
		began := time.Now()
		err := r.runSession(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // we were asked to stop
		}
		if time.Since(began) > stableSession {
			retry = newRetryBackoff()
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
	consumer, err := findCloudConsumer(ctx, r.js, r.stream)
	if err != nil {
		return fmt.Errorf("consumer of %s: %w", r.stream, err)
	}
	held := newFairQueue[jetstream.Msg](maxQueuedReports, maxQueuedReportsPerNode, reportWorkersPerNode)
	faults := make(chan error, 1) // the first fault ends the session
	consuming, err := consumer.Consume(
		func(msg jetstream.Msg) {
			subject, node := msg.Subject(), subjectToken(msg.Subject(), 1)
			if held.push(itemOrigin{node, subject, memorySize(msg.Headers(), msg.Data())}, msg) {
				r.overflow.admitMessage(node, subject)
			} else {
				r.deferReport(node, msg)
			}
		},
		jetstream.PullMaxMessages(reportPull), jetstream.PullHeartbeat(pullHeartbeat), jetstream.PullExpiry(pullExpiry),
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
	stop := context.AfterFunc(gctx, held.close)
	defer stop()
	g.Go(func() error {
		keepAlive(gctx, held)
		return nil
	})
	for range reportWorkers {
		g.Go(func() error {
			for {
				msg, ok := held.pop()
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
	for _, msg := range held.heldItems() {
		_ = msg.Nak() // otherwise another cloudcore receives it a little later
	}
	return err
}

// keepAlive sends progress acks for the held reports.
func keepAlive(ctx context.Context, held *fairQueue[jetstream.Msg]) {
	ticker := time.NewTicker(inProgressPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, msg := range held.heldItems() {
			_ = msg.InProgress() // it is settled, or the hub is unreachable: then another cloudcore may have it
		}
	}
}

// deferReport returns a report to the stream for a moment, because its node has reached its limit, or drops it, because the node floods
// the stream.
func (r *ReportConsumer) deferReport(node string, msg jetstream.Msg) {
	result, settle := "crowded", func() error { return msg.NakWithDelay(deferDelay) }
	over, first := r.overflow.deferMessage(node, msg.Subject(), time.Now())
	if over {
		result, settle = "flooded", msg.Term
		// The node may be honest, with very many objects: gaveUp has it asked for the current state of this one, later.
		if _, node, key, err := ParseSubject(msg.Subject()); err == nil && r.gaveUp != nil {
			r.gaveUp(wire.Message{Node: node, Key: key})
		}
	}
	if first {
		r.log.Warn("a node floods the stream, what is too much is dropped", zap.String("node", node), zap.String("stream", r.stream))
	}
	r.metrics.reports.WithLabelValues(string(r.plane), result).Inc()
	if err := settle(); err != nil {
		r.log.Warn("report not put off", zap.String("subject", msg.Subject()), zap.Error(err))
	}
}

// handleMessage handles one message; acks are sent here only.
func (r *ReportConsumer) handleMessage(ctx context.Context, held *fairQueue[jetstream.Msg], msg jetstream.Msg) {
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	result, settle := r.evaluateReport(ctx, msg)
	held.done(msg)
	r.metrics.reports.WithLabelValues(string(r.plane), result).Inc()
	if err := settle(); err != nil {
		r.log.Warn("report not settled", zap.String("subject", msg.Subject()), zap.String("result", result), zap.Error(err))
	} else if result != "retry" {
		r.chunks.deleteParts(ctx, msg)
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
		r.retries.reset(m.Node, msg.Subject())
		if msg.Headers().Get(headerParts) != "" {
			return "ok", func() error { return msg.DoubleAck(ctx) } // its parts are deleted only after the ack
		}
		return "ok", msg.Ack
	case errors.Is(err, wire.ErrPermanent):
		r.retries.reset(m.Node, msg.Subject())
	case errors.Is(err, wire.ErrRefused):
		if reason := r.retries.recordRefusal(m.Node, msg.Subject(), time.Now()); reason != nil {
			result, err = "refused", fmt.Errorf("%w: %w", reason, err)
			break
		}
		fallthrough
	default:
		r.log.Info("report tried again", zap.String("subject", msg.Subject()), zap.Uint64("attempt", meta.NumDelivered), zap.Error(err))
		return "retry", again
	}
	if err := r.deadLetters.put(ctx, r.plane, msg.Subject(), msg.Headers(), msg.Data(), err); err != nil {
		r.log.Warn("dead letter not stored", zap.String("subject", msg.Subject()), zap.Error(err))
		return "retry", again
	}
	if (result == "refused" || errors.Is(err, errIncomplete)) && r.gaveUp != nil {
		r.gaveUp(m)
	}
	return result, msg.Term
}

// decodeReport decodes a report. If its payload stays missing, the report was lost with its parts.
func (r *ReportConsumer) decodeReport(ctx context.Context, msg jetstream.Msg, attempt uint64) (wire.Message, error) {
	payload, err := r.chunks.loadPayload(ctx, msg)
	if err == nil {
		return r.codec.decode(msg.Subject(), msg.Headers(), payload)
	}
	m, garbage := decodeHeader(msg.Subject(), msg.Headers())
	switch {
	case garbage != nil:
		return m, garbage
	case errors.Is(err, errIncomplete) && attempt >= incompleteAttempts:
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
