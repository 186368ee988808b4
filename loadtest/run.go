package loadtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/loadtest/deviceload"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/loadtest/procfs"
	"github.com/frond-edge/frond/loadtest/results"
)

// Options of Run.
type Options struct {
	// Command is the command line, for the report.
	Command string
	// Dir is the folder of the clusters; empty is a new temporary folder. It is removed.
	Dir string
	// Seed generates the contents of objects.
	Seed uint64
	// Size is the amount of work.
	Size Size
	// Only names the stages to run; empty means all that this user may run. See Stages.
	Only []string
	// Programs returns the programs to run; nil builds missing ones from the present tree.
	Programs func(context.Context, devcluster.Spec) (toolchain.Paths, error)
	// Progress receives progress messages.
	Progress io.Writer
}

// Size is the amount of work of each scenario.
type Size struct {
	Updates   int // of one ConfigMap, one at a time
	Burst     int // ConfigMaps of one node
	Rounds    int // of each rate
	FanNodes  int // gateways of the fan-out
	FanOut    int // ConfigMaps to each of them
	Pods      int // started one at a time
	Resident  int // pods that run while memory is read
	Held      int // ConfigMaps that are there while memory is read
	Services  int // that kube-proxy watches while memory is read
	Settle    time.Duration
	Samples   int
	Kills     int           // of the owner of a node
	Slow      int           // ConfigMaps changed over a slow link
	First     int           // objects that a node has never had, one at a time
	CatchUp   int           // objects changed while a gateway is away
	Window    time.Duration // in which the bytes of an idle link are counted
	Attached  []int         // nodes attached to one hub, simulated at the protocol
	Readers   int           // that follow logs at once
	LogLines  int           // of each log
	LogNodes  int           // gateways whose logs are followed
	Collected bool          // whether to wait until their readers' garbage was collected
	QuietTime time.Duration // before each stage, for the start of a cluster to settle
	Devices   deviceload.Size
}

// Full is the size of the runs in docs/operations/numbers.md.
func Full() Size {
	return Size{
		Updates: 300, Burst: 1000, Rounds: 5, FanNodes: 20, FanOut: 200, Pods: 30,
		Resident: 10, Held: 1000, Services: 1000, Settle: 20 * time.Second, Samples: 5, QuietTime: 15 * time.Second,
		Kills: 10, Slow: 200, First: 100, CatchUp: 10_000, Window: time.Minute, Attached: []int{1000, 5000},
		Readers: 1000, LogLines: 500, LogNodes: 10, Collected: true, Devices: deviceload.Full(),
	}
}

// Short proves that each scenario works; its numbers mean nothing.
func Short() Size {
	return Size{
		Updates: 10, Burst: 40, Rounds: 1, FanNodes: 2, FanOut: 10, Pods: 2, Resident: 2, Held: 20, Services: 20, Samples: 1,
		Kills: 1, Slow: 10, First: 3, CatchUp: 50, Window: 2 * time.Second, Attached: []int{20, 50},
		Readers: 40, LogLines: 40, LogNodes: 2, Devices: deviceload.Short(),
	}
}

// Run starts clusters, runs all scenarios on them, stops them, and prints the setup first and the table last.
// The report holds the completed measurements, also when there is an error. After an error that wraps deviceload.ErrLost the other scenarios still run.
func Run(ctx context.Context, o Options) (report results.Report, err error) {
	dir := o.Dir
	if dir == "" {
		if dir, err = os.MkdirTemp("", "frond-load-"); err != nil {
			return report, fmt.Errorf("make folder: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	} else if err := os.MkdirAll(dir, 0o755); err != nil {
		return report, fmt.Errorf("make folder: %w", err)
	}
	if report.Setup, err = results.NewSetup(ctx, o.Command, dir, o.Seed); err != nil {
		return report, err
	}
	report.Setup.Print(o.Progress)
	report.Loads = map[string]float64{}
	b := runner{Options: o, dir: filepath.Join(dir, "cluster"), report: &report}
	defer func() { err = errors.Join(err, b.stopCluster(ctx)) }()
	var lost []error
	for _, st := range allStages(o.Size) {
		if len(o.Only) != 0 && !slices.Contains(o.Only, st.name) {
			continue
		}
		if reason := st.missing(); reason != "" {
			fmt.Fprintf(o.Progress, "%s: skipped: %s\n", st.name, reason)
			continue
		}
		err := b.runStage(ctx, st)
		if err != nil {
			err = fmt.Errorf("%s: %w", st.name, err)
		}
		if err != nil && !errors.Is(err, deviceload.ErrLost) {
			return report, errors.Join(append(lost, err)...)
		}
		lost = append(lost, err)
	}
	return report, errors.Join(lost...)
}

// runner is one Run.
type runner struct {
	Options
	dir     string
	cluster *devcluster.Cluster
	report  *results.Report
}

func (b *runner) runStage(ctx context.Context, st clusterStage) error {
	if !st.reusesCluster {
		if err := b.stopCluster(ctx); err != nil {
			return err
		}
	}
	if err := b.startCluster(ctx, st.spec); err != nil {
		return err
	}
	if err := poll.Sleep(ctx, b.Size.QuietTime); err != nil {
		return err
	}
	w, err := newEnvironment(ctx, b.cluster, b.Seed, b.Size)
	if err != nil {
		return err
	}
	defer w.close()
	if b.report.Setup.Kubernetes == "" {
		version, err := w.kube.Discovery().ServerVersion()
		if err != nil {
			return fmt.Errorf("ask the version of Kubernetes: %w", err)
		}
		b.report.Setup.Kubernetes, b.report.Setup.NATS = version.GitVersion, w.nc.ConnectedServerVersion()
	}
	var lost []error // the scenarios after one that loses samples run all the same
	for _, s := range st.scenarios {
		w.recorder = results.Recorder{Scenario: st.name + ": " + s.name}
		load := procfs.LoadAverage()
		b.report.Loads[w.recorder.Scenario] = load
		fmt.Fprintf(b.Progress, "%s, load %.2f\n", w.recorder.Scenario, load)
		err := runScenario(ctx, w, s)
		b.report.Lines = append(b.report.Lines, w.recorder.Lines()...)
		if err != nil {
			lost = append(lost, fmt.Errorf("%s: %w", s.name, err))
		}
		if err != nil && !errors.Is(err, deviceload.ErrLost) {
			break
		}
	}
	return errors.Join(lost...)
}

func (b *runner) stopCluster(ctx context.Context) error {
	if b.cluster == nil {
		return nil
	}
	cluster := b.cluster
	b.cluster = nil
	if err := cluster.Down(context.WithoutCancel(ctx), false); err != nil {
		return fmt.Errorf("take the cluster down: %w", err)
	}
	return nil
}

// upTimeout bounds the start of 20 gateways on two cores.
const upTimeout = 5 * time.Minute

// startCluster starts a cluster. After an error the cluster, if any, is partially started.
func (b *runner) startCluster(ctx context.Context, spec devcluster.Spec) (err error) {
	programs := b.Programs
	if programs == nil {
		programs = func(ctx context.Context, spec devcluster.Spec) (toolchain.Paths, error) {
			node := spec.Runtime == devcluster.Containerd
			return toolchain.Ensure(ctx, toolchain.Request{Kube: true, Nats: true, Frond: true, Node: node}, b.Progress)
		}
	}
	b.cluster, err = devcluster.Up(ctx, devcluster.Options{Dir: b.dir, Spec: spec, Progress: b.Progress, Timeout: upTimeout, Programs: programs})
	return err
}
