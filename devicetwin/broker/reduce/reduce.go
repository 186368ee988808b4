// Package reduce keeps from the telemetry store the samples that the annotations of their Devices leave out (devicetwin/reduction). The values of the
// twins are not its matter: they follow each report.
package reduce

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/devicetwin/reduction"
)

// Reducer is a broker.Recorder before another one, and a broker.Observer before another one, from which it has the rules. Both belong to the goroutine of
// the broker. What was kept last is in memory: after a start the first sample of each property is kept.
type Reducer struct {
	next     broker.Recorder
	observer broker.Observer
	reduced  prometheus.Counter
	devices  map[types.NamespacedName]*device
}

// device is a device whose samples are reduced.
type device struct {
	uid   types.UID
	rules map[string]reduction.Rule
	// kept has the last sample of each property with a rule that was recorded.
	kept map[string]reduction.Sample
}

// New returns a Reducer. observer may be nil.
func New(next broker.Recorder, observer broker.Observer, metrics prometheus.Registerer) *Reducer {
	return &Reducer{
		next: next, observer: observer, devices: map[types.NamespacedName]*device{},
		reduced: promauto.With(metrics).NewCounter(prometheus.CounterOpts{
			Namespace: "frond", Subsystem: "telemetry", Name: "reduced_total", Help: "Samples that were not kept because of the annotations of their Devices.",
		}),
	}
}

// TwinsChanged implements broker.Observer.
func (r *Reducer) TwinsChanged(changed []devicetwin.Twin, removed []types.NamespacedName) {
	for _, twin := range changed {
		r.setRules(twin.Spec)
	}
	for _, id := range removed {
		delete(r.devices, id)
	}
	if r.observer != nil {
		r.observer.TwinsChanged(changed, removed)
	}
}

func (r *Reducer) setRules(spec devicetwin.Spec) {
	d := r.devices[spec.ID]
	switch {
	case len(spec.Reduction) == 0:
		delete(r.devices, spec.ID)
		return
	case d == nil || d.uid != spec.UID:
		d = &device{uid: spec.UID, kept: map[string]reduction.Sample{}}
		r.devices[spec.ID] = d
	}
	d.rules = spec.Reduction
	for property := range d.kept {
		if _, ruled := d.rules[property]; !ruled {
			delete(d.kept, property)
		}
	}
}

// CheckWritable implements broker.Recorder.
func (r *Reducer) CheckWritable() error { return r.next.CheckWritable() }

// Record implements broker.Recorder.
func (r *Reducer) Record(ctx context.Context, samples []broker.Sample) error {
	return r.pass(ctx, samples, r.next.Record)
}

// Enqueue implements broker.Recorder.
func (r *Reducer) Enqueue(ctx context.Context, samples []broker.Sample) error {
	return r.pass(ctx, samples, r.next.Enqueue)
}

// pass passes on what is kept. Samples that could not be recorded are not what later ones are compared with: they come again.
func (r *Reducer) pass(ctx context.Context, samples []broker.Sample, next func(context.Context, []broker.Sample) error) error {
	if len(r.devices) == 0 {
		return next(ctx, samples)
	}
	kept := make([]broker.Sample, 0, len(samples))
	fresh := map[property]*reduction.Sample{}
	for _, s := range samples {
		if r.shouldKeep(s, fresh) {
			kept = append(kept, s)
		}
	}
	if len(kept) > 0 {
		if err := next(ctx, kept); err != nil {
			return err
		}
	}
	for at, last := range fresh {
		if last == nil {
			delete(r.devices[at.device].kept, at.name)
		} else {
			r.devices[at.device].kept[at.name] = *last
		}
	}
	r.reduced.Add(float64(len(samples) - len(kept)))
	return nil
}

// property is one of a device.
type property struct {
	device types.NamespacedName
	name   string
}

// shouldKeep reports whether a sample is kept, and notes in fresh what the next one of its property is compared with, if that has a rule. After one that is
// late, of an earlier time than the one before, that is nothing: the next is kept, as it may differ from either.
func (r *Reducer) shouldKeep(s broker.Sample, fresh map[property]*reduction.Sample) bool {
	d := r.devices[s.Device]
	if d == nil {
		return true
	}
	rule, ruled := d.rules[s.Property]
	if !ruled {
		return true
	}
	at := property{s.Device, s.Property}
	last, noted := fresh[at]
	if before, known := d.kept[s.Property]; !noted && known {
		last = &before
	}
	sample := reduction.Sample{Value: s.Value, Time: timeOf(s)}
	switch {
	case last == nil:
		fresh[at] = &sample
	case !rule.Keep(*last, sample):
		return false
	case sample.Time.Before(last.Time):
		fresh[at] = nil
	default:
		fresh[at] = &sample
	}
	return true
}

// timeOf returns the time of a sample: the device's, else the gateway's.
func timeOf(s broker.Sample) time.Time {
	if s.Time.IsZero() {
		return s.Received
	}
	return s.Time
}
