package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// repositoryRoot is the repository as this package sees it.
const repositoryRoot = "../.."

// readmeCommands are the shell commands of README.md, in order, and how each is tested.
func readmeCommands() []struct{ command, how string } {
	const here, makefile, script = "run here", "checked in the Makefile", "run here, as one script"
	return []struct{ command, how string }{
		{"make demo", here},
		{"make test", makefile}, // it runs this test, and .ci/run runs it
		{". .frond/env", script},
		{"kubectl get nodes -o wide", script},
		{"kubectl get pods --all-namespaces -o wide", script},
		{"frond status", script},
		{"frond sync edge-1", script},
		{"frond dev status", script},
		{"frond dev store edge-1 list", script},
		{"frond dev cut edge-1", script},
		{"frond dev exec edge-1 -- frond edge get pods -A", script},
		{"frond dev heal edge-1", script},
		{"make down", makefile}, // it would end the cluster of all tests
		{"make", here},
	}
}

func TestReadmeHasNoOtherCommands(t *testing.T) {
	var got, want []string
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(readRepoFile(t, "README.md"), -1) {
		for line := range strings.Lines(block[1]) {
			got = append(got, strings.TrimSpace(line))
		}
	}
	for _, c := range readmeCommands() {
		want = append(want, c.command)
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("README.md has the commands\n%s\nand this test runs\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestReadmeMake(t *testing.T) {
	if out := runShell(t, "make"); !strings.Contains(out, "demo ") || !strings.Contains(out, "test ") {
		t.Errorf("make prints\n%s", out)
	}
	if out := runShell(t, "make -n down"); !strings.Contains(out, "frond-dev down") {
		t.Errorf("make down would run\n%s", out)
	}
	if out := runShell(t, "make -n test"); !strings.Contains(out, "./test/e2e/...") {
		t.Errorf("make test would run\n%s", out)
	}
	if !strings.Contains(readRepoFile(t, ".ci/run"), "make test") {
		t.Error(".ci/run does not run make test")
	}
}

// TestReadmeDemo runs the whole demo in the cluster of all tests.
func TestReadmeDemo(t *testing.T) {
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), waitTimeout)
		defer cancel()
		if _, err := shared.Kubectl(ctx, "", "delete", "namespace", "demo", "--ignore-not-found"); err != nil {
			t.Errorf("clean up: %v", err)
		}
		if err := shared.Heal(ctx, "edge-1"); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	if out := runShell(t, "make demo DIR="+shared.Dir()); !strings.Contains(out, "The whole story came true") {
		t.Errorf("make demo prints\n%s", out)
	}
}

// TestReadmeLookAround runs the README's commands in one shell, on the cluster of all tests.
func TestReadmeLookAround(t *testing.T) {
	script := "set -e\n"
	for _, c := range readmeCommands() {
		command := strings.ReplaceAll(c.command, ".frond/", shared.Dir()+"/")
		switch {
		case strings.HasPrefix(command, "frond dev "):
			command = strings.Replace(command, "frond dev ", "frond dev --dir "+shared.Dir()+" ", 1)
		case strings.HasPrefix(command, "make"):
			continue
		}
		script += command + "\n"
	}
	t.Cleanup(func() {
		if err := shared.Heal(context.WithoutCancel(t.Context()), "edge-1"); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	out := runShell(t, script)
	for _, want := range []string{"Ready", "GATEWAY", "nodes edge-1", "services default/kubernetes"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q:\n%s", want, out)
		}
	}
}

// TestMetricsAreDocumented compares docs/operations/metrics.md with the metrics of the processes.
func TestMetricsAreDocumented(t *testing.T) {
	document := readRepoFile(t, "docs/operations/metrics.md")
	for part, read := range map[string]func(context.Context, string) (string, error){
		"cloudcore-1": shared.CloudMetrics, "cloudcore-2": shared.CloudMetrics, "edge-1": shared.EdgeMetrics, "edge-2": shared.EdgeMetrics,
	} {
		text, err := read(t.Context(), part)
		if err != nil {
			t.Fatal(err)
		}
		names := regexp.MustCompile(`(?m)^# TYPE (frond_\w+)`).FindAllStringSubmatch(text, -1)
		if len(names) < 10 {
			t.Errorf("%s shows %d metrics of its own", part, len(names))
		}
		for _, name := range names {
			if !strings.Contains(document, "`"+name[1]+"`") {
				t.Errorf("%s shows %s, which docs/operations/metrics.md does not explain", part, name[1])
			}
		}
	}
}

// runShell runs a script in the repository and returns its output; a failure ends the test.
func runShell(t *testing.T, script string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
	cmd.Dir = repositoryRoot
	// The make that runs this test must not share a job server with the makes that this test runs.
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "MAKEFLAGS" && name != "MFLAGS" && name != "MAKELEVEL" {
			cmd.Env = append(cmd.Env, v)
		}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatal(fmt.Errorf("%s: %w\n%s", script, err, out))
	}
	return string(out)
}

func readRepoFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(repositoryRoot + "/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
