package deviceload

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/frond-edge/frond/api/devices"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/loadtest/procfs"
	"github.com/frond-edge/frond/loadtest/results"
	"github.com/frond-edge/frond/loadtest/workload"
)

// perClient bounds what one client sends: the gateway takes 200 messages a second of a device, and 1,000 at once.
const perClient = 150

// pumps are the clients of a scenario.
type pumps struct {
	load *Load
	list []*pump
}

// startPumps creates Devices, connects their clients and waits until the gateway knows them. Stop them, also after an error.
func startPumps(ctx context.Context, l *Load) (*pumps, error) {
	s, names := &pumps{load: l}, workload.Names("load-pump", l.size.Clients)
	before, err := l.hub.position(ctx)
	if err != nil {
		return s, err
	}
	if err := l.api.createPumps(ctx, names); err != nil {
		return s, err
	}
	if s.list, err = connectPumps(ctx, l, names); err != nil {
		return s, err
	}
	if err := s.each(ctx, (*pump).awaitKnown); err != nil {
		return s, err
	}
	arrived, err := l.hub.awaitArrival(ctx, before, len(names)) // so that they are not counted as those of a measurement
	if err == nil && arrived.count < len(names) {
		err = fmt.Errorf("%w: %d of the first %d values", ErrLost, arrived.count, len(names))
	}
	return s, err
}

func (s *pumps) stop(ctx context.Context) error {
	closePumps(s.list)
	return s.load.api.deleteDevices(ctx)
}

// each calls do for all at once.
func (s *pumps) each(ctx context.Context, do func(*pump, context.Context) error) error {
	g, gctx := errgroup.WithContext(ctx)
	for _, p := range s.list {
		g.Go(func() error { return do(p, gctx) })
	}
	return g.Wait()
}

// sent returns what is expected of the hub after a measurement which began at these numbers.
func (s *pumps) sent(began map[string]int64) (want map[string]expectation, count int) {
	want = map[string]expectation{}
	for _, p := range s.list {
		want[p.name] = expectation{after: began[p.name], last: p.acked}
		count += int(p.acked - began[p.name])
	}
	return want, count
}

func (s *pumps) numbers() map[string]int64 {
	now := map[string]int64{}
	for _, p := range s.list {
		now[p.name] = p.acked
	}
	return now
}

// measurement is what sending of samples cost and gave.
type measurement struct {
	sent    int
	took    time.Duration // of the sending
	arrival arrival
	began   time.Time
	lost    int
	cpu     time.Duration // of edgecore while it was sent
	up      uint64        // bytes over the link until all arrived
	fault   error         // of the judge
}

// measure sends, waits until all is in the hub, and judges it. Its error is of the measurement; what the judge says is in fault.
func (s *pumps) measure(ctx context.Context, send func(context.Context) error) (m measurement, err error) {
	l := s.load
	after, err := l.hub.position(ctx)
	if err != nil {
		return m, err
	}
	before, err := l.cluster.States(ctx)
	if err != nil {
		return m, err
	}
	numbers, used := s.numbers(), procfs.CPU(l.cluster.PID(l.edge))
	m.began = time.Now()
	if err := send(ctx); err != nil {
		return m, err
	}
	m.took, m.cpu = time.Since(m.began), procfs.CPU(l.cluster.PID(l.edge))-used
	var want map[string]expectation
	want, m.sent = s.sent(numbers)
	if m.arrival, err = l.hub.awaitArrival(ctx, after, m.sent); err != nil {
		return m, err
	}
	states, err := l.cluster.States(ctx)
	if err != nil {
		return m, err
	}
	m.up = uint64(states[l.edge].UpBytes - before[l.edge].UpBytes)
	hub, err := l.hub.readSamples(ctx, after)
	if err != nil {
		return m, err
	}
	m.lost, m.fault = compareSamples(want, hub, l.timeOf)
	return m, nil
}

// lag is how long after the last PUBACK the last sample was in the hub.
func (m measurement) lag() time.Duration { return max(0, m.arrival.ended.Sub(m.began.Add(m.took))) }

// MeasureSamples sends values at fixed rates and then as fast as they are acked.
func MeasureSamples(ctx context.Context, l *Load) (err error) {
	if len(l.size.Rates) == 0 && l.size.Fast == 0 {
		return nil
	}
	s, err := startPumps(ctx, l)
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	if err != nil {
		return err
	}
	if err := s.each(ctx, (*pump).withoutResults); err != nil {
		return err
	}
	var faults []error
	for i, perSecond := range l.size.Rates {
		m, err := measureRate(ctx, l, s, perSecond, i == 0)
		if err != nil {
			return err
		}
		faults = append(faults, m.fault)
	}
	if l.size.Fast > 0 {
		m, err := s.measure(ctx, s.sendFast)
		if err != nil {
			return err
		}
		recordFast(l, m)
		faults = append(faults, m.fault)
	}
	return errors.Join(faults...)
}

func recordFast(l *Load, m measurement) {
	at := fmt.Sprintf("as fast as %d clients get PUBACKs", l.size.Clients)
	l.recorder.Record(results.Measure{Text: "values by MQTT, QoS 1, " + at + ": PUBACKs", Unit: results.Rate, Aim: 5000}, results.PerSecond(m.sent, m.took))
	l.recorder.Record(results.Measure{Text: "  into TELEMETRY-0, first value → last there", Unit: results.Rate, Peer: "89", Aim: 5000}, results.PerSecond(m.arrival.count, m.arrival.ended.Sub(m.began)))
	record(l, m, at)
}

// measureRate sends values at a rate, and may count the requests to the apiserver.
func measureRate(ctx context.Context, l *Load, s *pumps, perSecond int, countRequests bool) (m measurement, err error) {
	var before map[request]float64
	if countRequests {
		if before, err = l.api.settledRequests(ctx); err != nil {
			return m, err
		}
	}
	var latencies []float64
	m, err = s.measure(ctx, func(ctx context.Context) (err error) {
		latencies, err = s.sendEvenly(ctx, perSecond)
		return err
	})
	if err != nil {
		return m, err
	}
	at := fmt.Sprintf("at %d a second", perSecond)
	l.recorder.Record(results.Measure{Text: "a value by MQTT, QoS 1, sent → PUBACK, " + at, Unit: results.Time}, latencies...)
	l.recorder.Record(results.Measure{Text: "  the last in TELEMETRY-0 after the last PUBACK, " + at, Unit: results.Time}, results.Milliseconds(m.lag()))
	record(l, m, at)
	if countRequests {
		return m, recordRequests(ctx, l, before, m)
	}
	return m, nil
}

// record adds the lines that each measurement has.
func record(l *Load, m measurement, at string) {
	l.recorder.Record(results.Measure{Text: "  lost or not in order, " + at}, faultsOf(m))
	l.recorder.Record(results.Measure{Text: "  samples in the hub, " + at}, float64(m.sent-m.lost))
	l.recorder.Record(results.Measure{Text: "  bytes on the link for a sample, " + at}, float64(m.up)/float64(max(1, m.arrival.count)))
	l.recorder.Record(results.Measure{Text: "  cores that edgecore uses, " + at}, m.cpu.Seconds()/m.took.Seconds())
}

// faultsOf is the number of lost samples, and 1 if none is lost and yet something is wrong.
func faultsOf(m measurement) float64 {
	if m.lost == 0 && m.fault != nil {
		return 1
	}
	return float64(m.lost)
}

// sendFast lets each client send as soon as its last value is acked.
func (s *pumps) sendFast(ctx context.Context) error {
	ends := time.Now().Add(s.load.size.Fast)
	return s.each(ctx, func(p *pump, ctx context.Context) error {
		limiter := rate.NewLimiter(perClient, 1)
		for time.Now().Before(ends) {
			if err := errors.Join(limiter.Wait(ctx), p.send(ctx)); err != nil {
				return err
			}
		}
		return nil
	})
}

// sendEvenly sends at a rate and returns the time of each PUBACK, in milliseconds, from when its value was due.
func (s *pumps) sendEvenly(ctx context.Context, perSecond int) (latencies []float64, err error) {
	var mu sync.Mutex // guards latencies
	interval := time.Duration(float64(time.Second) * float64(len(s.list)) / float64(perSecond))
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	for i, p := range s.list {
		g.Go(func() error {
			var own []float64
			for due := began.Add(interval * time.Duration(i) / time.Duration(len(s.list))); due.Sub(began) < s.load.size.Steady; due = due.Add(interval) {
				at := due
				if wait := time.Until(due); wait > 0 {
					if err := poll.Sleep(gctx, wait); err != nil {
						return err
					}
					at = time.Now() // a late timer is not the broker's
				}
				if err := p.send(gctx); err != nil {
					return err
				}
				own = append(own, results.Milliseconds(time.Since(at)))
			}
			mu.Lock()
			defer mu.Unlock()
			latencies = append(latencies, own...)
			return nil
		})
	}
	err = g.Wait()
	return latencies, err
}

// recordRequests records the writes since before. KubeEdge writes each report.
func recordRequests(ctx context.Context, l *Load, before map[request]float64, m measurement) error {
	now, err := l.api.settledRequests(ctx)
	if err != nil {
		return err
	}
	perThousand := 1000 / float64(max(1, m.sent))
	for _, resource := range []string{devices.DeviceStatusesResource, devices.DevicesResource} {
		total := 0.0
		for _, verb := range writes() {
			n := now[request{verb, resource}] - before[request{verb, resource}]
			if total += n; n > 0 {
				l.recorder.Record(results.Measure{Text: fmt.Sprintf("  %s of %s for 1,000 samples", verb, resource)}, n*perThousand)
			}
		}
		l.recorder.Record(results.Measure{Text: fmt.Sprintf("writes of %s to the API for 1,000 samples, %d devices", resource, l.size.Clients)}, total*perThousand)
		l.recorder.Record(results.Measure{Text: "  a second, of " + resource, Aim: 60}, total/m.took.Seconds())
	}
	return nil
}
