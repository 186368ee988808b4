package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/frond-edge/frond/internal/toolchain"
)

// A suite runs tests of Kubernetes' end-to-end program against a cluster.
type suite struct {
	options
	paths      toolchain.Paths
	store      resultStore
	kubeconfig string
	out        io.Writer
}

// listTests returns the names of all conformance tests, sorted.
func listTests(ctx context.Context, paths toolchain.Paths) ([]string, error) {
	cmd := exec.CommandContext(ctx, paths.E2E, "--list-tests")
	cmd.Env = append(os.Environ(), "KUBECONFIG=")
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the tests of %s: %w", paths.E2E, err)
	}
	var tests []string
	for line := range strings.Lines(string(out)) {
		if name := strings.TrimSpace(line); strings.Contains(name, "[Conformance]") {
			tests = append(tests, testName(name))
		}
	}
	if len(tests) == 0 {
		return nil, errors.New("list the tests: there is no conformance test")
	}
	slices.Sort(tests)
	return slices.Compact(tests), nil
}

// testName removes the source position that the list has before each test.
func testName(line string) string {
	if _, name, found := strings.Cut(line, ": ["); found && !strings.HasPrefix(line, "[") {
		return "[" + name
	}
	return line
}

// runTests runs the tests that have not passed yet, then the failed ones once more, one at a time.
func (s *suite) runTests(ctx context.Context, chosen []string) error {
	todo, err := s.remainingTests(chosen)
	if err != nil {
		return err
	}
	fmt.Fprintf(s.out, "%d tests to run, %d have passed before\n", len(todo), len(chosen)-len(todo))
	for attempt := 0; len(todo) > 0 && attempt <= s.retries; attempt++ {
		procs := s.procs
		if attempt > 0 {
			procs = 1
			fmt.Fprintf(s.out, "running %d failed tests again, one at a time\n", len(todo))
		}
		if err := s.runAll(ctx, todo, procs); err != nil {
			return err
		}
		if todo, err = s.notPassed(todo); err != nil {
			return err
		}
	}
	return nil
}

// runAll runs Ginkgo until each test has a result of this attempt: a test that takes too long ends its process and so the round.
func (s *suite) runAll(ctx context.Context, todo []string, procs int) error {
	if err := s.store.removeResults(todo); err != nil {
		return err
	}
	for len(todo) > 0 {
		if err := s.runGinkgo(ctx, todo, procs); err != nil {
			return err
		}
		left, err := s.withoutResult(todo)
		if err != nil {
			return err
		}
		if len(left) == len(todo) {
			return fmt.Errorf("%d tests have no result, such as %q: see %s", len(left), left[0], s.logFile())
		}
		todo = left
	}
	return nil
}

func (s *suite) logFile() string { return filepath.Join(s.dir, "ginkgo.log") }

// runGinkgo runs Ginkgo once. Failed tests are no error: their results report them.
func (s *suite) runGinkgo(ctx context.Context, tests []string, procs int) error {
	log, err := os.OpenFile(s.logFile(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("open the log of tests: %w", err)
	}
	defer func() { _ = log.Close() }()
	program, err := s.compiledTest()
	if err != nil {
		return err
	}
	const grace = time.Minute // Ginkgo cleans up after an interrupt
	cmd := exec.CommandContext(ctx, s.paths.Ginkgo, append(s.ginkgoFlags(tests, procs), program, "--",
		"--kubeconfig="+s.kubeconfig, "--kubectl-path="+filepath.Join(filepath.Dir(s.paths.Kube), "kubectl"),
		"--results="+s.store.dir, "--test-timeout="+s.limit.String(),
		"--dump-logs-on-failure=false", "--report-dir="+filepath.Join(s.dir, "reports"), "--e2e-output-dir="+filepath.Join(s.dir, "reports"),
	)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = grace
	defer func() {
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // processes that a killed Ginkgo has left; mostly none
		}
	}()
	stop := s.store.followResults(ctx, s.out, len(tests))
	defer stop()
	var failed *exec.ExitError
	if err := cmd.Run(); ctx.Err() != nil {
		return context.Cause(ctx)
	} else if err != nil && !errors.As(err, &failed) {
		return fmt.Errorf("run tests: %w", err)
	}
	return nil
}

func (s *suite) ginkgoFlags(tests []string, procs int) []string {
	flags := []string{
		"--procs=" + strconv.Itoa(procs), "--no-color", "--succinct", "--keep-going", "--timeout=24h", "--poll-progress-after=0",
	}
	for _, t := range tests {
		flags = append(flags, "--focus="+regexp.QuoteMeta(t)+"$")
	}
	return flags
}

// compiledTest returns the program under the name by which Ginkgo recognizes compiled tests.
func (s *suite) compiledTest() (string, error) {
	link := filepath.Join(s.dir, "e2e.test")
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("name the tests: %w", err)
	}
	if err := os.Symlink(s.paths.E2E, link); err != nil {
		return "", fmt.Errorf("name the tests: %w", err)
	}
	return link, nil
}

// remainingTests returns the tests that have not passed; with a focus, all.
func (s *suite) remainingTests(tests []string) ([]string, error) {
	if s.focus != "" {
		return tests, nil
	}
	return s.notPassed(tests)
}

func (s *suite) notPassed(tests []string) ([]string, error) {
	return s.filterTests(tests, func(r result, there bool) bool { return !there || r.State == stateFailed })
}

func (s *suite) withoutResult(tests []string) ([]string, error) {
	return s.filterTests(tests, func(_ result, there bool) bool { return !there })
}

func (s *suite) filterTests(tests []string, keep func(r result, there bool) bool) ([]string, error) {
	results, err := s.store.load()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(tests), func(t string) bool {
		r, there := results[t]
		return !keep(r, there)
	}), nil
}
