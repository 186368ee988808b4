// Command conformance runs Kubernetes' conformance tests on gateways of a development cluster.
//
//	go run ./tools/conformance                  all tests that concern a gateway
//	go run ./tools/conformance -subset          some twenty of them, as CI does
//	go run ./tools/conformance -page FILE       write the results of earlier runs as a page of the documentation
//
// The result of each test is a file in the folder -results. A test that has passed is not run again with the same programs, so an
// interrupted run can be continued. applicability.yaml lists the tests that are not run, and why. The cluster needs root.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/frond-edge/frond/internal/toolchain"
)

type options struct {
	dir, page, focus string
	kubernetes       string
	subset, keep     bool
	procs, retries   int
	limit            time.Duration
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&o.dir, "dir", ".conformance", "folder of the cluster, its logs and the results")
	flags.StringVar(&o.page, "page", "", "write the results that are there to this Markdown file, and run nothing")
	flags.StringVar(&o.kubernetes, "kubernetes", "", "minor version of the control plane, 1.35 or 1.36; empty for that of the tests")
	flags.StringVar(&o.focus, "focus", "", "run only tests whose name matches this regular expression, also those that have passed")
	flags.BoolVar(&o.subset, "subset", false, "run the short list of subset.txt with images that need no network")
	flags.BoolVar(&o.keep, "keep", false, "leave the cluster running")
	flags.IntVar(&o.procs, "procs", 4, "how many tests run at once")
	flags.IntVar(&o.retries, "retries", 1, "how often a failed test is run again, alone")
	flags.DurationVar(&o.limit, "test-timeout", 10*time.Minute, "how long one test may take")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := o.runConformance(ctx, stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "conformance:", err)
	}
	if err != nil || !ok {
		return 1
	}
	return 0
}

// runConformance reports whether all chosen tests have passed.
func (o options) runConformance(ctx context.Context, stdout, stderr io.Writer) (bool, error) {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return false, fmt.Errorf("find the folder: %w", err)
	}
	o.dir = dir
	store := resultStore{dir: filepath.Join(dir, "results")}
	rules, err := loadRules()
	if err != nil {
		return false, err
	}
	if o.page != "" {
		return true, writePage(o.page, store, rules)
	}
	paths, err := toolchain.Ensure(ctx, toolchain.Request{Kube: true, ControlPlane: o.kubernetes, Node: true, Nats: true, DNS: true, Frond: true, Conformance: true}, stderr)
	if err != nil {
		return false, err
	}
	tests, err := listTests(ctx, paths)
	if err != nil {
		return false, err
	}
	chosen, err := chooseTests(o, tests, rules)
	if err != nil {
		return false, err
	}
	what := runInfo(paths, time.Now())
	what.Tests = tests
	if err := store.open(what); err != nil {
		return false, err
	}
	what.Frond = cmp.Or(toolchain.DescribeTree(ctx, "."), "devel") // an unpacked archive has no version
	bed := &testbed{}
	if !o.keep {
		defer bed.stop(ctx, stderr)
	}
	for _, p := range rules.splitPasses(chosen) {
		if err := o.growTestbed(ctx, bed, p.gateways, paths, stderr); err != nil {
			return false, err
		}
		if what.Kubernetes, err = bed.serverVersion(ctx); err != nil {
			return false, err
		}
		if err := store.writeInfo(what); err != nil {
			return false, err
		}
		s := suite{paths: paths, options: o, store: store, kubeconfig: bed.Kubeconfig(), out: stderr}
		if err := s.runTests(ctx, p.tests); err != nil {
			return false, err
		}
	}
	return printSummary(stdout, store, rules, tests, chosen)
}
