package loadtest

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/buildinfo"
	"github.com/frond-edge/frond/internal/cli"
	"github.com/frond-edge/frond/loadtest/exercise"
	"github.com/frond-edge/frond/loadtest/observe"
	"github.com/frond-edge/frond/loadtest/plan"
	"github.com/frond-edge/frond/loadtest/report"
	"github.com/frond-edge/frond/loadtest/swarm"
)

type planRun struct {
	common
	output cli.Output
	dir    string
	lose   bool
}

func newRun() *cobra.Command {
	r := &planRun{}
	cmd := &cobra.Command{
		Use:   "run PLAN.yaml|short|1000|10000",
		Short: "Carry out a plan with simulated gateways, and judge it",
		Long: `Carry out a plan with simulated gateways, and judge it: latencies against the plan's limits, and whether each gateway holds in the end
exactly what Kubernetes holds for it. The report is written as report.json, junit.xml and report.html. The exit code is 1 if a judge
does not pass. All objects of the run are deleted at the end, also after an interrupt.`,
		Example: "  frond loadtest run short\n  frond loadtest run my-plan.yaml --report-dir out",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.Run(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	r.addFlags(cmd)
	r.output.AddFlag(cmd)
	f := cmd.Flags()
	f.StringVar(&r.dir, "report-dir", "loadtest-report", "the folder of the report")
	f.BoolVar(&r.lose, "lose-object", false, "have a gateway lose an object, to see that the run fails")
	_ = f.MarkHidden("lose-object") // the flag is there
	return cmd
}

// readPlan reads a built-in plan or a file.
func readPlan(name string) (plan.Plan, error) {
	text, ok := plan.Builtin(name)
	if !ok {
		var err error
		if text, err = os.ReadFile(filepath.Clean(name)); err != nil {
			return plan.Plan{}, fmt.Errorf("read the plan: %w\n  short, 1000 and 10000 are built in", err)
		}
	}
	return plan.Parse(text)
}

// Run carries out a plan.
func (r *planRun) Run(ctx context.Context, name string, out, talk io.Writer) error {
	p, err := readPlan(name)
	if err != nil {
		return err
	}
	c, err := r.connect(ctx, talk)
	if err != nil {
		return err
	}
	urls := map[string]string{}
	for _, component := range p.Metrics {
		urls[component.Name] = component.URL
	}
	runner := exercise.New(p, r.run, c.Namespace(), c.kube, observe.New(c.kube, urls, c.log).Read, c.log)
	c.cfg.OnApplied, c.cfg.AllServices = runner.Observe, p.AllServices
	done := &report.Report{Run: r.run, Plan: name, Version: buildinfo.Version(), Began: time.Now()}
	failed := c.withSwarm(ctx, talk, func(ctx context.Context, all *swarm.Swarm) error { return r.exercise(ctx, runner, all, done, talk) })
	if failed != nil {
		done.Interrupted = failed.Error()
	}
	done.Sizing = report.SizingLines(done.Phases)
	if err := done.Write(r.dir); err != nil {
		return err
	}
	if r.output.JSON() {
		err = cli.PrintJSON(out, done)
	} else {
		_, err = fmt.Fprint(out, done.Text())
	}
	switch {
	case err != nil:
		return err
	case failed != nil:
		return failed
	case !done.Pass():
		return &cli.ExitError{Message: "not passed:\n  " + strings.Join(done.Failures(), "\n  "), Code: 1}
	}
	fmt.Fprintf(talk, "passed; the report is in %s\n", r.dir)
	return nil
}

// exercise carries out all phases and the audit, into a report.
func (r *planRun) exercise(ctx context.Context, runner *exercise.Runner, all *swarm.Swarm, done *report.Report, talk io.Writer) error {
	before := ownBytes()
	err := runner.Run(ctx, all, exercise.Listener{
		Progress: func(p exercise.Progress) {
			fmt.Fprintf(talk, "phase %d, %s, %.0f s: %d operations have ended, %d have not, %d requests failed, %d messages; %d gateways have joined, %d are linked\n",
				p.Number, p.Kind, p.Elapsed.Seconds(), p.Ended, p.Outstanding, p.Failed, p.Messages, p.Joined, p.Linked)
		},
		Done: func(result exercise.Result) {
			done.Phases = append(done.Phases, result)
			const enough, kilo = 100, 1000
			if len(done.Phases) == 1 && result.Gateways >= enough {
				done.KilobytesPerGateway = (ownBytes() - before) / kilo / float64(result.Gateways)
			}
			fmt.Fprintf(talk, "phase %d, %s: %d operations in %.1f s, p99 %.1f ms, %d missing, %d messages, %.2f MB on the links; %s\n", len(done.Phases), result.Kind, result.Latency.Count,
				result.Seconds, result.Latency.P99, result.Missing, result.Messages, float64(result.Sent+result.Received)/1e6, memoryText()) //nolint:mnd // megabytes
		},
	})
	if err != nil {
		return err
	}
	if r.lose {
		runner.Break()
	}
	done.Judgements, err = runner.Audit(ctx)
	return err
}

// memoryText says what memory this process takes, all of its gateways together.
func memoryText() string {
	const megabyte = 1e6
	m := observe.OwnMemory()
	return fmt.Sprintf("this process takes %.0f MB, of it %.0f MB of objects and %.0f MB of stacks", ownBytes()/megabyte, float64(m.HeapObjects)/megabyte, float64(m.Stacks)/megabyte)
}

// ownBytes returns the memory of this process; 0 if it cannot be read.
func ownBytes() float64 {
	usage, err := observe.Own()
	if err != nil {
		return 0
	}
	return usage.Bytes
}
