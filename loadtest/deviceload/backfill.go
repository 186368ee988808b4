package deviceload

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/frond-edge/frond/loadtest/results"
	"github.com/frond-edge/frond/loadtest/workload"
)

// MeasureBackfill sends values while the link is cut, each after the answer to the one before it, and heals the link. While the samples go to the hub,
// it changes a ConfigMap that a pod of the gateway mounts, one change after the ack of the other.
func MeasureBackfill(ctx context.Context, l *Load) (err error) {
	if l.size.Backfill == 0 {
		return nil
	}
	s, err := startPumps(ctx, l)
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	if err != nil {
		return err
	}
	config := workload.Names("backfill", 1)
	if _, err := l.objects.CreateConfigMaps(ctx, config); err != nil {
		return err
	}
	if _, _, err := l.objects.LaunchPods(ctx, workload.PausePod("backfill", l.edge, config)); err != nil {
		return err
	}
	var healed time.Time
	var stored time.Duration
	var running errgroup.Group
	deliveries := &deliveryLoop{load: l, config: config}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m, err := s.measure(ctx, func(ctx context.Context) error {
		if err := l.cluster.Cut(ctx, l.edge, true); err != nil {
			return err
		}
		began := time.Now()
		err := s.sendAnswered(ctx, l.size.Backfill)
		stored, healed = time.Since(began), time.Now()
		if err := errors.Join(err, l.cluster.Heal(context.WithoutCancel(ctx), l.edge)); err != nil {
			return err
		}
		running.Go(func() error { return deliveries.run(ctx) })
		return nil
	})
	deliveries.ended.Store(true)
	if err != nil {
		cancel()
	}
	if err = errors.Join(err, running.Wait()); err != nil {
		return err
	}
	recordBackfill(l, m, healed, stored, deliveries)
	return m.fault
}

func recordBackfill(l *Load, m measurement, healed time.Time, stored time.Duration, d *deliveryLoop) {
	of := fmt.Sprintf("%d samples from a cut link", m.sent)
	l.recorder.Record(results.Measure{Text: of + ": lost or not in order, or with another time", Peer: "all"}, faultsOf(m))
	l.recorder.Record(results.Measure{Text: "  answered while it was cut", Unit: results.Rate}, results.PerSecond(m.sent, stored))
	l.recorder.Record(results.Measure{Text: "  link healed → first of them in TELEMETRY-0", Unit: results.Time}, results.Milliseconds(m.arrival.began.Sub(healed)))
	l.recorder.Record(results.Measure{Text: "  link healed → last of them there", Unit: results.Time}, results.Milliseconds(m.arrival.ended.Sub(healed)))
	l.recorder.Record(results.Measure{Text: "  first there → last there", Unit: results.Rate, Aim: 5000}, results.PerSecond(m.arrival.count, max(m.arrival.ended.Sub(m.arrival.began), time.Millisecond))) // few come as one batch
	l.recorder.Record(results.Measure{Text: "  bytes on the link for a sample"}, float64(m.up)/float64(max(1, m.arrival.count)))
	l.recorder.Record(results.Measure{Text: "  one ConfigMap update meanwhile, API call → acked", Unit: results.Time}, d.took...)
}

// sendAnswered sends so many values from all clients, each as soon as the one before it is answered.
func (s *pumps) sendAnswered(ctx context.Context, count int) error {
	var begun atomic.Int64
	return s.each(ctx, func(p *pump, ctx context.Context) error {
		limiter := rate.NewLimiter(perClient, 1)
		for begun.Add(1) <= int64(count) {
			if err := errors.Join(limiter.Wait(ctx), p.sendAnswered(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
}

// deliveryLoop changes a ConfigMap until it is ended, once at least.
type deliveryLoop struct {
	load   *Load
	config []string
	// ended is set when no further change shall begin.
	ended atomic.Bool
	// took, in milliseconds, may be read after run.
	took []float64
}

// firstTry is how long a change waits for its ack until one was acked: the attach of a gateway brings objects without an ack of each.
const firstTry = 500 * time.Millisecond

func (d *deliveryLoop) run(ctx context.Context) error {
	deadline := time.Now().Add(answerTimeout)
	for attached := false; len(d.took) == 0 || !d.ended.Load(); {
		took, err := d.change(ctx, attached)
		switch {
		case err == nil && attached:
			d.took = append(d.took, results.Milliseconds(took))
		case err == nil:
			attached = true
		case attached || ctx.Err() != nil || time.Now().After(deadline):
			return err
		}
	}
	return nil
}

// change changes the ConfigMap and waits for the ack.
func (d *deliveryLoop) change(ctx context.Context, attached bool) (time.Duration, error) {
	began := time.Now()
	d.load.acks.Reset()
	versions, err := d.load.objects.UpdateConfigMaps(ctx, d.config)
	if err != nil {
		return 0, err
	}
	if !attached {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, firstTry)
		defer cancel()
	}
	last, err := d.load.acks.Await(ctx, []string{d.load.edge}, versions)
	return last.Sub(began), err
}
