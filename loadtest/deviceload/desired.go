package deviceload

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/devices/sensor"
	"github.com/frond-edge/frond/loadtest/mapperrun"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/loadtest/results"
	"github.com/frond-edge/frond/loadtest/workload"
)

// desiredPause is between two changes of desired values: longer than the 0.5 s for which edgecore spares mappers a second change of one device, if there
// are several devices.
const desiredPause = 120 * time.Millisecond

// frameworkPause is the least time between two changes of one device that a mapper on KubeEdge's framework survives.
const frameworkPause = 500 * time.Millisecond

const aimDesired = 10 // milliseconds

// MeasureDelta changes desired values, one after the other, and times the delta at the device's MQTT client.
func MeasureDelta(ctx context.Context, l *Load) (err error) {
	if l.size.Desired == 0 {
		return nil
	}
	s, err := startPumps(ctx, l)
	defer func() { err = errors.Join(err, s.stop(ctx)) }()
	if err != nil {
		return err
	}
	for i := range l.size.Desired {
		p, value := s.list[i%len(s.list)], strconv.Itoa(1+i)
		if err := poll.Sleep(ctx, desiredPause); err != nil {
			return err
		}
		began := time.Now()
		if err := l.api.setDesired(ctx, p.name, value); err != nil {
			return err
		}
		answered := time.Now()
		if err := p.awaitDelta(ctx, value); err != nil {
			return err
		}
		l.recorder.Record(results.Measure{Text: "patch of a desired value → delta at the MQTT client", Unit: results.Time, Aim: aimDesired}, results.Milliseconds(time.Since(began)))
		l.recorder.Record(results.Measure{Text: "  of it until the apiserver answered", Unit: results.Time}, results.Milliseconds(answered.Sub(began)))
	}
	return nil
}

// awaitDelta waits for a delta with a value.
func (p *pump) awaitDelta(ctx context.Context, value string) error {
	timeout := time.NewTimer(answerTimeout)
	defer timeout.Stop()
	for {
		select {
		case got := <-p.deltas:
			if got == value {
				return nil
			}
		case <-timeout.C:
			return errors.New("no delta with the value " + value + " for " + p.name)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// MeasureMapper changes desired values of a mapper's devices, one after the other, and times the mapper's call; then it kills edgecore and times the
// mapper's first report that is answered again.
func MeasureMapper(ctx context.Context, l *Load) (err error) {
	if l.size.Motors == 0 {
		return nil
	}
	names := workload.Names("load-motor", l.size.Motors)
	defer func() { err = errors.Join(err, l.api.deleteDevices(ctx)) }()
	if err := l.api.createMotors(ctx, names); err != nil {
		return err
	}
	m, err := mapperrun.Start(ctx, l.cluster.MapperDir(l.edge))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Stop()) }()
	for _, name := range names {
		if _, err := m.Await(ctx, mapperrun.AnsweredAfter(workload.Namespace+"/"+name, time.Time{})); err != nil {
			return err
		}
	}
	for i := range l.size.Desired {
		if err := poll.Sleep(ctx, max(desiredPause, 2*frameworkPause/time.Duration(len(names)))); err != nil {
			return err
		}
		if err := changeMotor(ctx, l, m, names[i%len(names)], 1+2*i); err != nil {
			return err
		}
	}
	for i := range l.size.Restarts {
		if err := restartServed(ctx, l, m, names[i%len(names)]); err != nil {
			return err
		}
	}
	return nil
}

// changeMotor changes a desired value, and once more at once after the mapper was called.
func changeMotor(ctx context.Context, l *Load, m *mapperrun.Mapper, name string, value int) error {
	for i, text := range []string{"patch of a desired value → mapper called", "a second one of the device at once → mapper called, with the framework's 0.5 s between two"} {
		began := time.Now()
		if err := l.api.setDesired(ctx, name, strconv.Itoa(value+i)); err != nil {
			return err
		}
		answered := time.Now()
		called, err := m.Await(ctx, mapperrun.LineOf("called", workload.Namespace+"/"+name, sensor.Setpoint, strconv.Itoa(value+i)))
		if err != nil {
			return err
		}
		wrote, err := m.Await(ctx, mapperrun.LineOf("wrote", workload.Namespace+"/"+name, sensor.Setpoint, strconv.Itoa(value+i)))
		if err != nil {
			return err
		}
		of := results.Measure{Text: text, Unit: results.Time}
		if i == 0 {
			of.Aim = aimDesired
			l.recorder.Record(results.Measure{Text: "  of it until the apiserver answered", Unit: results.Time}, results.Milliseconds(answered.Sub(began)))
			l.recorder.Record(results.Measure{Text: "  → its driver has written it, with 20 ms that the mapper waits by itself", Unit: results.Time}, results.Milliseconds(wrote.Sub(began)))
		}
		l.recorder.Record(of, results.Milliseconds(called.Sub(began)))
	}
	return nil
}

// restartServed kills edgecore, starts it, and times the first report of a device that is answered OK. The mapper reports every motorCycle and does not
// register again.
func restartServed(ctx context.Context, l *Load, m *mapperrun.Mapper, name string) error {
	if err := l.cluster.Kill(ctx, l.edge); err != nil {
		return err
	}
	began := time.Now()
	if err := l.cluster.Start(ctx, l.edge); err != nil {
		return err
	}
	served, err := m.Await(ctx, mapperrun.AnsweredAfter(workload.Namespace+"/"+name, began))
	if err != nil {
		return err
	}
	l.recorder.Record(results.Measure{Text: "edgecore killed, started → a mapper's report answered", Unit: results.Time, Peer: "200-3300", Aim: 1000}, results.Milliseconds(served.Sub(began)))
	return nil
}
