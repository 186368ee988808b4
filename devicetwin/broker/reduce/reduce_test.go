package reduce_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/devicetwin"
	"github.com/frond-edge/frond/devicetwin/broker"
	"github.com/frond-edge/frond/devicetwin/broker/reduce"
	"github.com/frond-edge/frond/devicetwin/reduction"
)

var (
	began  = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	boiler = types.NamespacedName{Namespace: "default", Name: "boiler"}
	other  = types.NamespacedName{Namespace: "default", Name: "other"}
)

// store keeps what is recorded, and what is observed.
type store struct {
	values   []string
	calls    int
	enqueued int
	changed  int
	err      error
}

func (s *store) Record(_ context.Context, samples []broker.Sample) error {
	if s.err != nil {
		return s.err
	}
	for _, sample := range samples {
		s.values = append(s.values, sample.Property+"="+sample.Value)
	}
	s.calls++
	return nil
}

func (s *store) Enqueue(ctx context.Context, samples []broker.Sample) error {
	s.enqueued += len(samples)
	return s.Record(ctx, samples)
}

func (s *store) CheckWritable() error { return s.err }

func (s *store) TwinsChanged(changed []devicetwin.Twin, removed []types.NamespacedName) {
	s.changed += len(changed) + len(removed)
}

func twin(uid types.UID, rules map[string]reduction.Rule) []devicetwin.Twin {
	return []devicetwin.Twin{{Spec: devicetwin.Spec{ID: boiler, UID: uid, Reduction: rules}}}
}

func sample(id types.NamespacedName, property, value string, after time.Duration) broker.Sample {
	return broker.Sample{Device: id, Property: property, Value: value, Received: began.Add(after)}
}

func expect(t *testing.T, s *store, want ...string) {
	t.Helper()
	if !slices.Equal(s.values, want) {
		t.Errorf("recorded %s, want %s", strings.Join(s.values, " "), strings.Join(want, " "))
	}
	s.values = nil
}

func record(t *testing.T, r *reduce.Reducer, samples ...broker.Sample) {
	t.Helper()
	if err := r.Record(t.Context(), samples); err != nil {
		t.Fatal(err)
	}
}

func TestReducer_KeepsByRules(t *testing.T) {
	s, metrics := &store{}, prometheus.NewRegistry()
	r := reduce.New(s, s, metrics)
	record(t, r, sample(boiler, "temp", "20", 0), sample(boiler, "temp", "20", 0))
	expect(t, s, "temp=20", "temp=20") // no rules yet
	r.TwinsChanged(twin("u1", map[string]reduction.Rule{"temp": {Deadband: 1, MaxInterval: time.Minute}}), nil)
	record(t, r, sample(boiler, "temp", "20", 1), sample(boiler, "temp", "20.5", 2), sample(boiler, "mode", "on", 2), sample(boiler, "mode", "on", 3), sample(other, "temp", "20", 3), sample(boiler, "temp", "22", 4))
	expect(t, s, "temp=20", "mode=on", "mode=on", "temp=20", "temp=22")
	before := s.calls
	record(t, r, sample(boiler, "temp", "21.5", 5))
	if expect(t, s); s.calls != before {
		t.Error("nothing was recorded as something")
	}
	record(t, r, sample(boiler, "temp", "21.5", time.Minute+4*time.Nanosecond))
	expect(t, s, "temp=21.5")
	at := began.Add(2 * time.Minute)
	record(t, r, broker.Sample{Device: boiler, Property: "temp", Value: "21", Time: at, Received: began}) // the device's time counts
	expect(t, s)
	record(t, r, broker.Sample{Device: boiler, Property: "temp", Value: "21", Time: at.Add(time.Minute), Received: began})
	expect(t, s, "temp=21")
	const help = "# HELP frond_telemetry_reduced_total Samples that were not kept because of the annotations of their Devices.\n# TYPE frond_telemetry_reduced_total counter\n"
	if err := testutil.GatherAndCompare(metrics, strings.NewReader(help+"frond_telemetry_reduced_total 3\n")); err != nil {
		t.Error(err)
	}
	if s.changed != 1 {
		t.Errorf("%d changes", s.changed)
	}
}

// After a late sample the next one is kept: it is compared neither with the late one nor with the one before it.
func TestReducer_KeepsWhatFollowsALateSample(t *testing.T) {
	for name, together := range map[string]bool{"one by one": false, "together": true} {
		t.Run(name, func(t *testing.T) {
			s := &store{}
			r := reduce.New(s, s, prometheus.NewRegistry())
			r.TwinsChanged(twin("u1", map[string]reduction.Rule{"temp": {Deadband: 0.5}}), nil)
			samples := []broker.Sample{
				sample(boiler, "temp", "20.0", 10*time.Second), sample(boiler, "temp", "25.0", 5*time.Second),
				sample(boiler, "temp", "25.2", 11*time.Second), sample(boiler, "temp", "25.3", 12*time.Second),
			}
			if together {
				record(t, r, samples...)
			} else {
				for _, one := range samples {
					record(t, r, one)
				}
			}
			expect(t, s, "temp=20.0", "temp=25.0", "temp=25.2")
		})
	}
}

// A sample that could not be recorded is not compared with: the app sends it again.
func TestReducer_ForgetsWhatWasNotRecorded(t *testing.T) {
	s := &store{err: errors.New("disk full")}
	r := reduce.New(s, nil, prometheus.NewRegistry())
	r.TwinsChanged(twin("u1", map[string]reduction.Rule{"temp": {ChangeOnly: true}}), nil)
	if err := r.Record(t.Context(), []broker.Sample{sample(boiler, "temp", "20", 0)}); !errors.Is(err, s.err) {
		t.Fatal(err)
	}
	s.err = nil
	record(t, r, sample(boiler, "temp", "20", 1))
	expect(t, s, "temp=20")
}

// Another Device of the name begins anew; so does one whose rules were taken back and set again.
func TestReducer_FollowsDevices(t *testing.T) {
	s := &store{}
	r := reduce.New(s, s, prometheus.NewRegistry())
	rules := map[string]reduction.Rule{"temp": {ChangeOnly: true}}
	r.TwinsChanged(twin("u1", rules), nil)
	record(t, r, sample(boiler, "temp", "20", 0), sample(boiler, "temp", "20", 1))
	expect(t, s, "temp=20")
	r.TwinsChanged(twin("u1", rules), nil) // a value has changed
	record(t, r, sample(boiler, "temp", "20", 2))
	expect(t, s)
	r.TwinsChanged(twin("u2", rules), nil)
	record(t, r, sample(boiler, "temp", "20", 3))
	expect(t, s, "temp=20")
	r.TwinsChanged(twin("u2", nil), nil)
	record(t, r, sample(boiler, "temp", "20", 4))
	expect(t, s, "temp=20")
	r.TwinsChanged(twin("u2", rules), nil)
	record(t, r, sample(boiler, "temp", "20", 5))
	expect(t, s, "temp=20")
	r.TwinsChanged(nil, []types.NamespacedName{boiler})
	record(t, r, sample(boiler, "temp", "20", 6))
	expect(t, s, "temp=20")
}
