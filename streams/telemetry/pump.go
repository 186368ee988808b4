package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"golang.org/x/time/rate"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/internal/flow"
	"github.com/frond-edge/frond/streams/internal/lines"
	"github.com/frond-edge/frond/streams/link"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
)

const (
	// removeInterval is how often sent records are removed from the leaf's stream: each time costs a sync. What was sent since the last
	// time is sent again after a restart, and recognised.
	removeInterval = time.Second
	// olderCloudPause is the pause before a cloudcore is asked again that is older than telemetry.
	olderCloudPause = time.Minute
)

// errOlderCloud says that the cloudcore that answered is older than telemetry.
var errOlderCloud = errors.New("the cloudcore is older than what is sent")

// PumpConfig configures a Pump.
type PumpConfig struct {
	Node string
	// BytesPerSecond bounds what samples take of the link; 0 is no limit beyond the link's own.
	BytesPerSecond int
}

// Pump sends the content of a Store to the hub, oldest first, one request at a time. A request is not larger than what the link carries in
// about half a second, so that reports and deliveries find room beside it.
type Pump struct {
	cfg       PumpConfig
	store     *Store
	nc        *nats.Conn
	link      link.Link
	bandwidth *flow.BandwidthEstimator
	limiter   *rate.Limiter
	metrics   *PumpMetrics
	log       *zap.Logger

	// Only the running session uses these.
	loaded  bool // sent was read from the disk
	sent    sent
	note    uint64 // the sequence of the note that says so
	removed time.Time
	// forgotten is the sequence up to which the store knows that all is sent.
	forgotten uint64
	alone     bool // the next request has one record only: the last one was refused for good
}

// NewPump returns the pump of a store; nc is the node's connection, over which cloudcore is called.
func NewPump(cfg PumpConfig, store *Store, nc *nats.Conn, link link.Link, metrics *PumpMetrics, log *zap.Logger) *Pump {
	limit := rate.Inf
	if cfg.BytesPerSecond > 0 {
		limit = rate.Limit(cfg.BytesPerSecond)
	}
	return &Pump{
		cfg: cfg, store: store, nc: nc, link: link, bandwidth: flow.NewBandwidthEstimator(metrics.Budget),
		limiter: rate.NewLimiter(limit, max(cfg.BytesPerSecond, flow.MaxLinkBudget)), metrics: metrics, log: log,
	}
}

// Start sends until ctx ends and then returns nil.
func (p *Pump) Start(ctx context.Context) error {
	retry := flow.NewRetryBackoff()
	for ctx.Err() == nil {
		up, changed := p.link.State()
		if !up {
			p.observe(ctx)
			select {
			case <-ctx.Done():
			case <-changed:
				retry = flow.NewRetryBackoff()
			case <-time.After(depthInterval):
			}
			continue
		}
		stored := p.store.changed()
		moved, err := p.sendNext(ctx)
		delay := time.Duration(0)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // we were asked to stop
		case err != nil:
			delay = retry.Step()
			if errors.Is(err, errOlderCloud) {
				delay = olderCloudPause
			}
			p.log.Info(p.store.kind.Noun+" not sent", zap.Duration("retry", delay), zap.Error(err))
		case moved:
			retry = flow.NewRetryBackoff()
			continue
		default:
			p.remove(ctx, true)
			delay = depthInterval
		}
		p.observe(ctx)
		p.wait(ctx, delay, changed, stored, err == nil)
	}
	return nil
}

// depthInterval is how often the metrics of what waits are read while nothing is sent.
const depthInterval = 5 * time.Second

// wait waits for a delay, a change of the link or, when all is sent, for another record.
func (p *Pump) wait(ctx context.Context, delay time.Duration, changed, stored <-chan struct{}, all bool) {
	if !all {
		stored = nil
	}
	select {
	case <-ctx.Done():
	case <-changed:
	case <-stored:
	case <-time.After(delay):
	}
}

// sendNext sends the next records. moved is false when all are sent.
func (p *Pump) sendNext(ctx context.Context) (moved bool, err error) {
	if err := p.load(ctx); err != nil {
		return false, err
	}
	size := p.bandwidth.Budget() / 2
	if p.alone {
		size = 0
	}
	records, damaged, after, err := p.store.readRecords(ctx, p.sent.sequence, size)
	if err != nil {
		return false, err
	}
	if damaged > 0 {
		p.metrics.Dropped.WithLabelValues("damaged").Add(float64(damaged))
		p.log.Error("records unreadable, passed over", zap.Int("records", damaged))
	}
	if len(records) == 0 {
		moved, p.sent.sequence = after > p.sent.sequence, after
		return moved, nil
	}
	reply, err := p.send(ctx, records)
	last := records[len(records)-1]
	switch {
	case err != nil:
		return false, err
	case reply.Permanent && len(records) > 1:
		p.alone = true // to find the one that is refused
		return true, nil
	case reply.Permanent:
		p.metrics.Dropped.WithLabelValues("refused").Add(float64(last.count))
		p.log.Error(p.store.kind.Noun+" refused by the cloud", zap.Uint64("first", last.first), zap.Uint64("last", last.last()), zap.String("reason", reply.Error))
	case reply.Number < last.last():
		return false, fmt.Errorf("the hub has all up to %d after those up to %d were sent", reply.Number, last.last())
	}
	p.metrics.Dropped.WithLabelValues("full").Add(float64(p.sent.missing(records[0])))
	p.alone = false
	p.sent = sent{sequence: last.sequence, run: last.run, number: last.last()}
	p.metrics.Refused.Add(float64(reply.Refused))
	p.store.kind.ReachSent()
	p.remove(ctx, false)
	return true, nil
}

// load reads what is sent from the disk.
func (p *Pump) load(ctx context.Context) (err error) {
	if p.loaded {
		return nil
	}
	if p.sent, p.note, err = p.store.readSent(ctx); err != nil {
		return err
	}
	p.loaded, p.forgotten = true, p.sent.sequence
	return nil
}

// missing returns how many lines were dropped between what is sent and the next record: the numbers of a run have no gaps and begin at 1.
func (s sent) missing(next *record) uint64 {
	switch {
	case s.unknown:
		return 0
	case next.run != s.run:
		return next.first - 1
	default:
		return next.first - min(next.first, s.number+1)
	}
}

// send makes one request and waits for its answer.
func (p *Pump) send(ctx context.Context, records []*record) (Reply, error) {
	var reply Reply
	data := make([][]byte, len(records))
	for i, r := range records {
		data[i] = r.data
	}
	body, err := lines.EncodeRequest(records[0].run, data)
	if err != nil {
		return reply, err
	}
	if err := p.limiter.WaitN(ctx, min(len(body), p.limiter.Burst())); err != nil {
		return reply, fmt.Errorf("telemetry: %w", err)
	}
	began := time.Now()
	rctx, cancel := context.WithTimeout(ctx, topology.PumpTimeout)
	defer cancel()
	msg, err := p.nc.RequestWithContext(rctx, subject.CallSubject(p.cfg.Node, p.store.kind.Verb), body)
	if err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			p.bandwidth.ObserveTimeout()
		} else {
			p.bandwidth.ObserveNoReply(len(body), time.Since(began))
		}
		return reply, fmt.Errorf("telemetry: %w", err)
	}
	p.metrics.Bytes.Add(float64(len(body)))
	switch err := json.Unmarshal(msg.Data, &reply); {
	case err != nil:
		return reply, fmt.Errorf("telemetry: answer: %w", err)
	case strings.HasSuffix(reply.Error, fmt.Sprintf(call.UnknownVerbFormat, p.store.kind.Verb)):
		return reply, errOlderCloud
	case strings.HasPrefix(reply.Error, wire.ErrPermanent.Error()): // from the server of calls, which knows the error only
		reply.Permanent = true
	case reply.Error != "":
		return reply, fmt.Errorf("telemetry: the cloud: %s", reply.Error)
	}
	p.bandwidth.ObserveReply(len(body), time.Since(began))
	return reply, nil
}

// remove removes the sent records from the leaf's stream, unless it did so a moment ago.
func (p *Pump) remove(ctx context.Context, now bool) {
	if p.sent.sequence == p.forgotten || !now && time.Since(p.removed) < removeInterval {
		return
	}
	p.removed = time.Now()
	note, err := p.store.forget(ctx, p.sent)
	if err != nil {
		if ctx.Err() == nil {
			p.log.Warn("what is sent is not removed", zap.Error(err))
		}
		return
	}
	p.forgotten, p.note = p.sent.sequence, note
}

// observe updates the metrics of what waits. If the note of what is sent was dropped with the oldest records, it is written again: what was dropped is counted
// from there.
func (p *Pump) observe(ctx context.Context) {
	if p.load(ctx) != nil {
		return
	}
	state, err := p.store.waiting(ctx)
	if err != nil {
		return
	}
	p.metrics.WaitingBytes.Set(float64(state.Bytes))
	waiting := state.LastSeq - min(state.LastSeq, max(p.sent.sequence, state.FirstSeq-min(state.FirstSeq, 1)))
	p.metrics.WaitingRecords.Set(float64(waiting))
	if p.note > 0 && state.FirstSeq > p.note {
		if note, err := p.store.writeSent(ctx, p.sent); err == nil {
			p.note = note
		}
	}
}
