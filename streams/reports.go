package streams

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/crash"
)

const (
	// reportWorkers is how many reports one cloudcore applies at once; each waits for one or two API calls.
	reportWorkers = 32
	// handleTimeout ends before the server would give the message to another (ackWait).
	handleTimeout = 25 * time.Second
	// laneDepth lets a worker have a few reports ahead without holding up the others.
	laneDepth = 16
)

// ReportHandler applies one report to Kubernetes. nil: it is applied, or rightly dropped. An error that wraps
// wire.ErrPermanent sends it to the dead letters; any other is tried again.
type ReportHandler func(ctx context.Context, m wire.Message) error

// Reports hands what nodes report to a handler. All cloudcores share one consumer a stream, so each report goes to one of
// them; reports of one object that reach this process are handled one after the other.
type Reports struct {
	plane   Plane
	stream  string
	js      jetstream.JetStream
	handle  ReportHandler
	codec   *codec
	dead    *deadLetters
	metrics *Metrics
	log     *zap.Logger
}

// NewReports makes the reader of a plane, Report or Event.
func NewReports(plane Plane, nc *nats.Conn, handle ReportHandler, metrics *Metrics, log *zap.Logger) (*Reports, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("reports: %w", err)
	}
	codec, err := newCodec()
	if err != nil {
		return nil, err
	}
	stream := ReportStream
	if plane == Event {
		stream = EventStream
	}
	return &Reports{
		plane: plane, stream: stream, js: js, handle: handle, codec: codec, metrics: metrics, log: log,
		dead: &deadLetters{js: js, from: cloudFrom, metrics: metrics, log: log},
	}, nil
}

// StillLast asks the stream's leader whether a report is still the newest of its object. A report that was replaced, or
// that another cloudcore has handled, is not.
func (r *Reports) StillLast(ctx context.Context, m wire.Message) (bool, error) {
	stream, err := r.js.Stream(ctx, r.stream)
	if err != nil {
		return false, fmt.Errorf("still last: %w", err)
	}
	_, err = stream.GetMsg(ctx, m.Sequence)
	if errNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("still last: %w", err)
	}
	return true, nil
}

// Start handles reports until ctx ends and then returns nil, after the handlers have returned. Reports in their hands
// are given to another cloudcore.
func (r *Reports) Start(ctx context.Context) error {
	retry := newRetry()
	for ctx.Err() == nil {
		began := time.Now()
		err := r.session(ctx)
		if ctx.Err() != nil {
			return nil //nolint:nilerr // we were asked to stop
		}
		if time.Since(began) > settled {
			retry = newRetry()
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

func (r *Reports) session(ctx context.Context) error {
	consumer, err := r.js.Consumer(ctx, r.stream, cloudConsumer)
	if err != nil {
		return fmt.Errorf("consumer %s: %w", cloudConsumer, err)
	}
	g, gctx := errgroup.WithContext(ctx)
	lanes := make([]chan jetstream.Msg, reportWorkers)
	for i := range lanes {
		lanes[i] = make(chan jetstream.Msg, laneDepth)
		g.Go(func() error {
			for {
				select {
				case <-gctx.Done():
					return nil
				case msg := <-lanes[i]:
					r.serve(gctx, msg)
				}
			}
		})
	}
	faults := make(chan error, 1) // the first fault ends the session
	consuming, err := consumer.Consume(
		func(msg jetstream.Msg) {
			h := fnv.New32a()
			_, _ = h.Write([]byte(msg.Subject())) // a hash never fails
			select {
			case lanes[h.Sum32()%reportWorkers] <- msg:
			case <-gctx.Done():
			}
		},
		jetstream.PullMaxMessages(reportWorkers*laneDepth/2), jetstream.PullHeartbeat(pullHeartbeat), jetstream.PullExpiry(pullExpiry),
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
	return g.Wait()
}

// serve handles one message; it alone acks.
func (r *Reports) serve(ctx context.Context, msg jetstream.Msg) {
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	result, settle := r.judge(ctx, msg)
	r.metrics.reports.WithLabelValues(string(r.plane), result).Inc()
	if err := settle(); err != nil {
		r.log.Warn("report not settled", zap.String("subject", msg.Subject()), zap.String("result", result), zap.Error(err))
	}
}

// judge runs the handler and says what is to become of the message.
func (r *Reports) judge(ctx context.Context, msg jetstream.Msg) (result string, settle func() error) {
	meta, err := msg.Metadata()
	if err != nil {
		return "garbage", msg.Term
	}
	again := func() error { return msg.NakWithDelay(nakDelay(meta.NumDelivered)) }
	m, err := r.codec.decode(msg.Subject(), msg.Headers(), msg.Data())
	if err == nil {
		m.Sequence = meta.Sequence.Stream
		crash.At("report.taken")
		err = r.handle(ctx, m)
		crash.At("report.applied")
	}
	switch {
	case err == nil:
		return "ok", msg.Ack
	case !errors.Is(err, wire.ErrPermanent):
		r.log.Info("report tried again", zap.String("subject", msg.Subject()), zap.Uint64("attempt", meta.NumDelivered), zap.Error(err))
		return "retry", again
	}
	if err := r.dead.put(ctx, r.plane, msg.Subject(), msg.Headers(), msg.Data(), err); err != nil {
		r.log.Warn("dead letter not stored", zap.String("subject", msg.Subject()), zap.Error(err))
		return "retry", again
	}
	return "dead", msg.Term
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
