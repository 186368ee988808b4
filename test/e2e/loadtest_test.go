package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/frond-edge/frond/loadtest/report"
)

// loadtest runs frond loadtest, and returns its exit code, what it said, and its report.
func loadtest(t *testing.T, run string, args ...string) (code int, talk string, r report.Report) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "report")
	ctx, cancel := context.WithTimeout(t.Context(), 2*waitTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(shared.Dir(), "bin", "frond"), append([]string{"loadtest", "run", "--run", run, "--report-dir", dir}, args...)...)
	cmd.Cancel, cmd.WaitDelay = func() error { return cmd.Process.Signal(os.Interrupt) }, waitTimeout // it deletes what it has made
	cmd.Env = append(os.Environ(), "KUBECONFIG="+shared.Kubeconfig())
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	for _, name := range []string{"junit.xml", "report.html", "report.json"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if name == "report.json" {
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
		}
	}
	return cmd.ProcessState.ExitCode(), string(out), r
}

// leftBy returns what is left of a run in the cluster, "" if nothing is.
func leftBy(ctx context.Context, run string) string {
	var left []string
	for _, args := range [][]string{
		{"get", "nodes", "-l", "loadtest.frond.io/run=" + run, "-o", "name"},
		{"get", "secrets", "-n", "kube-system", "-l", "loadtest.frond.io/run=" + run, "-o", "name"},
		{"get", "namespace", "loadtest-" + run, "--ignore-not-found", "-o", "name"},
		{"get", "nodeidentities", "-o", "name"},
	} {
		out, err := shared.Kubectl(ctx, "", args...)
		if err != nil {
			return err.Error()
		}
		for line := range strings.Lines(out) {
			if args[1] != "nodeidentities" || strings.Contains(line, "lt-"+run+"-") {
				left = append(left, strings.TrimSpace(line))
			}
		}
	}
	return strings.Join(left, " ")
}

// killPart returns a command that kills a part of this cluster. The part is started again when the test ends.
func killPart(t *testing.T, name string) string {
	t.Helper()
	pid := shared.PID(name)
	if pid == 0 {
		t.Fatalf("%s does not run", name)
	}
	t.Cleanup(func() {
		if err := shared.Start(context.WithoutCancel(t.Context()), name); err != nil {
			t.Error(err)
		}
	})
	return fmt.Sprintf("[sh, -c, kill -KILL %d]", pid)
}

// TestLoadtest_JudgesARun: the short plan passes on this cluster. A run whose gateways follow Services, in which a cloudcore and a hub server are
// killed and in which a gateway then loses an object, fails with exit code 1 for that object alone, and names it. Both delete all that they have
// made, and nothing of another run.
func TestLoadtest_JudgesARun(t *testing.T) {
	const foreign = "lt-e2e-short-99999"
	applyManifest(t, "apiVersion: v1\nkind: Node\nmetadata: {name: "+foreign+", labels: {loadtest.frond.io/run: e2e-shorter}}\n")
	code, talk, r := loadtest(t, "e2e-short", "short")
	if code != 0 || !r.Pass() || len(r.Phases) != 7 {
		t.Fatalf("exit code %d after %d phases: %s", code, len(r.Phases), talk)
	}
	t.Log(talk)
	for i, want := range []int64{20, 40, 60, 40, 6, 20, 0} {
		if got := r.Phases[i].Latency.Count; got != want {
			t.Errorf("phase %d, %s, has %d operations, want %d", i+1, r.Phases[i].Kind, got, want)
		}
	}
	eventually(t, "nothing is left", func(ctx context.Context) string { return leftBy(ctx, "e2e-short") })
	runKubectl(t, "get", "node", foreign)
	runKubectl(t, "apply", "--dry-run=server", "-f", "../../deploy/loadtest/swarm.yaml")

	plan := filepath.Join(t.TempDir(), "plan.yaml")
	text := `
apiVersion: loadtest.frond.io/v1alpha1
settle: 20s
allServices: true
phases:
- join: {gateways: 2, perSecond: 10}
- pods: {perGateway: 1, perSecond: 10}
- services: {count: 3, perSecond: 5, for: 2s}
- kill: {command: ` + killPart(t, "cloudcore-2") + `}
- kill: {command: ` + killPart(t, "hub-3") + `, restore: ["true"]}
`
	if err := os.WriteFile(plan, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, talk, r = loadtest(t, "e2e-lost", plan, "--lose-object")
	t.Log(talk)
	if want := "nothing is lost: 1 objects [lt-e2e-lost-00000: configmap page-lt-e2e-lost-00000"; code != 1 || !strings.Contains(talk, want) {
		t.Errorf("exit code %d, want 1 with %q: %s", code, want, talk)
	}
	if failures := r.Failures(); len(failures) != 1 || len(r.Phases) != 5 {
		t.Fatalf("%d phases, failures %q: %s", len(r.Phases), failures, talk)
	}
	for i, want := range []int64{2, 2, 20, 2, 2} { // each of 10 moves at both gateways
		if got := r.Phases[i].Latency.Count; got != want {
			t.Errorf("phase %d, %s, has %d operations, want %d", i+1, r.Phases[i].Kind, got, want)
		}
	}
	if services := r.Phases[2]; services.Messages < 2*2*3 || services.Received == 0 {
		t.Errorf("services: %d messages, %d bytes", services.Messages, services.Received)
	}
	eventually(t, "nothing is left", func(ctx context.Context) string { return leftBy(ctx, "e2e-lost") })
}
