package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRules_FirstMatchCounts(t *testing.T) {
	r, err := loadRules()
	if err != nil {
		t.Fatal(err)
	}
	if _, not := reasonFor(r.NotApplicable, "[sig-api-machinery] Watchers should observe [Conformance]"); !not {
		t.Error("a test of the apiserver alone is to be run on gateways")
	}
	if reason, not := reasonFor(r.NotApplicable, "[sig-api-machinery] Aggregator Should be able to [Conformance]"); not {
		t.Errorf("a test in which the apiserver calls a pod is not run: %s", reason)
	}
	if reason, not := reasonFor(r.NotApplicable, "[sig-node] Pods should be updated [Conformance]"); not {
		t.Errorf("a test of the kubelet is not run: %s", reason)
	}
}

func TestRules_PassesBeginWithOneGateway(t *testing.T) {
	r := rules{TwoGateways: []rule{mustRule(t, "B$")}}
	got := r.splitPasses([]string{"B", "A", "C"})
	want := []testPass{{gateways: 1, tests: []string{"A", "C"}}, {gateways: 2, tests: []string{"B"}}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(testPass{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := r.splitPasses([]string{"A"}); len(got) != 1 {
		t.Errorf("two gateways for tests that need one: %v", got)
	}
}

func TestSubset_NamesThatAreGoneAreAnError(t *testing.T) {
	var all []string
	for line := range strings.Lines(subset) {
		if name := strings.TrimSpace(line); !strings.HasPrefix(name, "#") {
			all = append(all, name)
		}
	}
	chosen, err := subsetOf(all)
	if err != nil || len(chosen) < 20 || len(chosen) > 25 {
		t.Errorf("chosen %d tests, %v: some twenty are what CI has time for", len(chosen), err)
	}
	if _, err := subsetOf(all[1:]); err == nil {
		t.Error("a test that upstream has no more is left out without a word")
	}
}

func TestTestName_LeavesOutThePlaceInTheSources(t *testing.T) {
	for line, want := range map[string]string{
		"k8s.io/kubernetes@v1.37.1/test/e2e/common/node/pods.go:1: [sig-node] Pods: should [Conformance]": "[sig-node] Pods: should [Conformance]",
		"[sig-node] Pods should be updated [Conformance]":                                                 "[sig-node] Pods should be updated [Conformance]",
	} {
		if got := testName(line); got != want {
			t.Errorf("%q: got %q, want %q", line, got, want)
		}
	}
}

func TestResultStore_ResultsOfOtherProgramsDoNotCount(t *testing.T) {
	store := resultStore{dir: filepath.Join(t.TempDir(), "results")}
	if err := store.open(info{Programs: []string{"one"}}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		programs string
		want     int
	}{{"one", 1}, {"two", 0}} {
		saveResult(t, store, "a.json", `{"test": "A", "state": "passed"}`)
		if err := store.open(info{Programs: []string{tt.programs}}); err != nil {
			t.Fatal(err)
		}
		if results, err := store.load(); err != nil || len(results) != tt.want {
			t.Errorf("%s: %d results, %v, want %d", tt.programs, len(results), err, tt.want)
		}
	}
}

func saveResult(t *testing.T, store resultStore, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(store.dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestSuite_RunsWhatHasNotPassed(t *testing.T) {
	store := resultStore{dir: filepath.Join(t.TempDir(), "results")}
	if err := store.open(info{}); err != nil {
		t.Fatal(err)
	}
	saveResult(t, store, "a.json", `{"test": "A", "state": "passed"}`)
	saveResult(t, store, "b.json", `{"test": "B", "state": "failed", "message": "lost\nmore"}`)
	saveResult(t, store, "c.json", `{"test": "C", "state": "skipped"}`)
	s := suite{store: store}
	tests := []string{"A", "B", "C", "D"}
	left, err := s.remainingTests(tests)
	if diff := cmp.Diff([]string{"B", "D"}, left); err != nil || diff != "" {
		t.Errorf("%v, remaining (-want +got):\n%s", err, diff)
	}
	s.focus = "A"
	if left, err = s.remainingTests([]string{"A"}); err != nil || len(left) != 1 {
		t.Errorf("a test that is asked for by name is not run again: %v, %v", left, err)
	}
	if err := store.removeResults([]string{"B"}); err != nil {
		t.Fatal(err)
	}
	left, err = s.withoutResult(tests)
	if diff := cmp.Diff([]string{"B", "D"}, left); err != nil || diff != "" {
		t.Errorf("%v, without a result (-want +got):\n%s", err, diff)
	}
}

func TestSummary_KnownFailureIsNoFailure(t *testing.T) {
	store := resultStore{dir: filepath.Join(t.TempDir(), "results")}
	if err := store.open(info{}); err != nil {
		t.Fatal(err)
	}
	tests := []string{"[sig-node] A", "[sig-node] B"}
	saveResult(t, store, "a.json", `{"test": "[sig-node] A", "state": "passed"}`)
	saveResult(t, store, "b.json", `{"test": "[sig-node] B", "state": "failed", "message": "lost\nmore"}`)
	for _, tt := range []struct {
		rules rules
		want  bool
	}{
		{rules{}, false},
		{rules{KnownFailures: []rule{mustRule(t, "B$")}}, true},
	} {
		var out bytes.Buffer
		ok, err := printSummary(&out, store, tt.rules, tests, tests)
		if err != nil || ok != tt.want {
			t.Errorf("%+v: %v, %v, want %v:\n%s", tt.rules, ok, err, tt.want, out.String())
		}
	}
	var out bytes.Buffer
	if ok, err := printSummary(&out, store, rules{}, tests, append(tests, "[sig-apps] C")); ok || err != nil || !strings.Contains(out.String(), "sig-apps") {
		t.Errorf("a test without a result passes for one that has passed: %v\n%s", err, out.String())
	}
}

func mustRule(t *testing.T, pattern string) rule {
	t.Helper()
	list := []rule{{Test: pattern, Reason: "known"}}
	if err := compileRules(list); err != nil {
		t.Fatal(err)
	}
	return list[0]
}

func TestPage_SaysWhatFailedAndWhatIsNotRun(t *testing.T) {
	store := resultStore{dir: filepath.Join(t.TempDir(), "results")}
	if err := store.open(info{Kubernetes: "v1.37.1", Tests: []string{"[sig-api] X", "[sig-node] A", "[sig-node] B", "[sig-node] C"}}); err != nil {
		t.Fatal(err)
	}
	saveResult(t, store, "a.json", `{"test": "[sig-node] A", "state": "passed"}`)
	saveResult(t, store, "b.json", `{"test": "[sig-node] B", "state": "failed", "message": "lost | found"}`)
	file := filepath.Join(t.TempDir(), "page.md")
	if err := writePage(file, store, rules{NotApplicable: []rule{mustRule(t, "sig-api")}}); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Kubernetes v1.37.1", "| sig-node | 1 | 1 | 0 | 1 | 0 | 3 |", `| [sig-node] B | not explained yet: lost \| found |`, "- [sig-node] C", "| 1 | known |"} {
		if !strings.Contains(string(page), want) {
			t.Errorf("no %q in the page:\n%s", want, page)
		}
	}
}
