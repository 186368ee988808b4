package report_test

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/loadtest/exercise"
	"github.com/frond-edge/frond/loadtest/measure"
	"github.com/frond-edge/frond/loadtest/observe"
	"github.com/frond-edge/frond/loadtest/report"
	"github.com/frond-edge/frond/test/kit"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func sample() *report.Report {
	pass := []exercise.Judgement{{Name: "all operations end", Pass: true, Detail: "0 missing of 20"}}
	r := &report.Report{
		Run: "r1", Plan: "short", Version: "v1", Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), KilobytesPerGateway: 120,
		Phases: []exercise.Result{
			{
				Kind: "join", Seconds: 2, Latency: measure.Summary{Count: 20, P50: 10, P90: 20, P99: 30, Max: 31, Worst: []float64{31, 12}}, Linked: 20, Gateways: 20, Judgements: pass,
				Usage: map[string]observe.Usage{"swarm": {CPUSeconds: 1, Bytes: 5e7}, "kube-apiserver": {CPUSeconds: 2, Bytes: 4e8, Requests: map[string]float64{"PATCH": 40}}},
			},
			{
				Kind: "idle", Seconds: 10, Sent: 2000, Received: 3000, Linked: 20, Gateways: 20, Judgements: []exercise.Judgement{{Name: "max", Detail: "2s, at most 1s <b>"}},
				Usage: map[string]observe.Usage{"swarm": {CPUSeconds: 1, Bytes: 5e7}},
			},
		},
		Judgements: []exercise.Judgement{{Name: "nothing is lost", Pass: true, Detail: "0 objects []"}},
	}
	r.Sizing = report.SizingLines(r.Phases)
	return r
}

func TestReport_MatchesGolden(t *testing.T) {
	r, dir := sample(), t.TempDir()
	kit.Must(t, r.Write(dir))
	for _, name := range []string{"report.json", "junit.xml", "report.html"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		kit.Must(t, err)
		golden := filepath.Join("testdata", name)
		if *update {
			kit.Must(t, os.MkdirAll("testdata", 0o750))
			kit.Must(t, os.WriteFile(golden, got, 0o600))
		}
		want, err := os.ReadFile(golden)
		kit.Must(t, err)
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if name == "report.html" && (strings.Contains(string(got), "<script") || strings.Contains(string(got), "http")) {
			t.Error("the page needs something from elsewhere")
		}
		var back report.Report
		if name == "report.json" && json.Unmarshal(got, &back) != nil {
			t.Error("the report cannot be read back")
		}
	}
}

func TestReport_Passes(t *testing.T) {
	r := sample()
	if failures := r.Failures(); r.Pass() || len(failures) != 1 || !strings.Contains(failures[0], "phase 2, idle: max") {
		t.Errorf("failures %q", failures)
	}
	r.Phases[1].Judgements = nil
	if !r.Pass() || len(r.Failures()) != 0 {
		t.Error("does not pass")
	}
	r.Interrupted = "somebody did"
	if r.Pass() || len(r.Failures()) != 1 {
		t.Error("a run that ended early passes")
	}
}

func TestSizingLines_SlopeNeedsThreeSizes(t *testing.T) {
	var phases []exercise.Result
	for _, gateways := range []int{100, 200, 300, 400} {
		phases = append(phases, exercise.Result{Kind: "join", Gateways: gateways, Usage: map[string]observe.Usage{"hub": {Bytes: 1e8 + float64(gateways)*1e5}}})
	}
	if lines := report.SizingLines(phases); len(lines) != 1 || !strings.HasPrefix(lines[0], "hub: 100 MB of memory for 1,000 gateways more, plus or minus 0 (measured from 100 to 400") {
		t.Errorf("%q", lines)
	}
	if lines := report.SizingLines(phases[:2]); !strings.Contains(lines[0], "memory for more gateways unknown (2 sizes") {
		t.Errorf("%q", lines)
	}
}
