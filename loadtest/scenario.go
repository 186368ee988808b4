package loadtest

import (
	"context"
	"time"

	"github.com/frond-edge/frond/loadtest/results"
	"github.com/frond-edge/frond/loadtest/workload"
)

// measure is what a line of a report says besides its samples.
type measure = results.Measure

// scenario is one measurement as data: which objects go to which gateways, what a round does with them, what ends its interval, and which
// statistics it gives. The objects are removed afterwards.
type scenario struct {
	name string
	// nodes is the number of gateways, the first of the cluster; objects is the number of ConfigMaps or pods, which object names.
	nodes, objects int
	object         string
	// single lets each round have only the next object.
	single bool
	// rounds are measured, after warmUp rounds that are not.
	rounds, warmUp int
	// countCPU records the CPU time of each delivery.
	countCPU bool

	// prepare comes before all rounds, finish after them; ready and undo before and after each.
	prepare, finish, ready, undo step
	// The interval begins before write and ends when await returns; the step that waits sets round.ended.
	write, await step
	lines        []line

	// run replaces all of the above for what has no rounds.
	run func(ctx context.Context, w *environment) error
}

// line is a line of a report with the statistic of a round.
type line struct {
	measure
	value func(r *round) float64
}

// step is a part of a scenario.
type step func(ctx context.Context, r *round) error

// inOrder is several steps.
func inOrder(list ...step) step {
	return func(ctx context.Context, r *round) error {
		for _, next := range list {
			if next == nil {
				continue
			}
			if err := next(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}
}

// round is the state of a scenario, and the times of its last round.
type round struct {
	*scenario
	w     *environment
	names []string // of the round's objects
	nodes []string
	// versions are those that the nodes are to have.
	versions workload.Versions
	// killed is the cloudcore that startKilled starts again.
	killed   string
	recorded bool

	began, written, ended time.Time
}

// tookTime and the functions that follow are the statistics of a round.
func tookTime(r *round) float64   { return results.Milliseconds(r.ended.Sub(r.began)) }
func answerTime(r *round) float64 { return results.Milliseconds(r.written.Sub(r.began)) }
func lagTime(r *round) float64    { return results.Milliseconds(r.ended.Sub(r.written)) }
func answerRate(r *round) float64 { return results.PerSecond(len(r.names), r.written.Sub(r.began)) }

func deliveryRate(r *round) float64 { return results.PerSecond(r.deliveries(), r.ended.Sub(r.began)) }

func (r *round) deliveries() int { return len(r.nodes) * len(r.names) }

// runScenario runs all rounds and removes what they left, which would disturb the next scenario. The recorder has the lines of completed
// rounds also after an error.
func runScenario(ctx context.Context, w *environment, s scenario) error {
	w.acks.Reset()
	if s.run == nil {
		s.run = s.runRounds
	}
	for _, do := range []func(context.Context) error{
		func(ctx context.Context) error { return s.run(ctx, w) }, w.objects.DeletePods, w.objects.DeleteConfigMaps,
		func(ctx context.Context) error { return w.acks.AwaitReleased(ctx, w.edges) },
	} {
		if err := do(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s scenario) runRounds(ctx context.Context, w *environment) error {
	all := workload.Names(s.object, s.objects)
	r := &round{scenario: &s, w: w, names: all, nodes: w.edges[:s.nodes]}
	if err := inOrder(s.prepare)(ctx, r); err != nil {
		return err
	}
	for i := range s.warmUp + s.rounds {
		if s.single {
			r.names = all[i%len(all):][:1]
		}
		r.recorded = i >= s.warmUp
		if err := inOrder(s.ready, measureRound, s.undo)(ctx, r); err != nil {
			return err
		}
	}
	return inOrder(s.finish)(ctx, r)
}

// measureRound writes, waits and records.
func measureRound(ctx context.Context, r *round) error {
	var before, after []cpuTime
	r.w.acks.Reset()
	if r.countCPU {
		before = readCPU(r.w)
	}
	r.began = time.Now()
	if err := r.write(ctx, r); err != nil {
		return err
	}
	r.written = time.Now()
	if err := inOrder(r.await)(ctx, r); err != nil {
		return err
	}
	if r.countCPU {
		after = readCPU(r.w)
	}
	if !r.recorded {
		return nil
	}
	for _, l := range r.lines {
		r.w.recorder.Record(l.measure, l.value(r))
	}
	for i := range after {
		used := float64((after[i].used-before[i].used)/time.Microsecond) / float64(r.deliveries())
		r.w.recorder.Record(measure{Text: "  CPU per delivery: " + after[i].group, Unit: results.CPU}, used)
	}
	return nil
}
