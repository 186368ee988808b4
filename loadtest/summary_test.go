package loadtest_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/loadtest"
)

func TestSummarize(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	rand.Shuffle(len(hundred), func(i, j int) { hundred[i], hundred[j] = hundred[j], hundred[i] })
	for name, tt := range map[string]struct {
		samples []float64
		want    loadtest.Summary
	}{
		"none":    {},
		"one":     {[]float64{7}, loadtest.Summary{N: 1, Min: 7, P50: 7, P99: 7, Max: 7}},
		"two":     {[]float64{9, 1}, loadtest.Summary{N: 2, Min: 1, P50: 1, P99: 9, Max: 9}},
		"hundred": {hundred, loadtest.Summary{N: 100, Min: 1, P50: 50, P99: 99, Max: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			before := append([]float64(nil), tt.samples...)
			if diff := cmp.Diff(tt.want, loadtest.Summarize(tt.samples)); diff != "" {
				t.Errorf("summary (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tt.samples); diff != "" {
				t.Errorf("the samples were changed: %s", diff)
			}
		})
	}
}

func TestReport(t *testing.T) {
	r := loadtest.Report{Lines: []loadtest.ReportLine{
		{Scenario: "s", Measure: "fast", Unit: "ms", Summary: loadtest.Summary{N: 3, Min: 1, P50: 4.999, P99: 8, Max: 9}, Peer: "13.7", Aim: 5},
		{Scenario: "s", Measure: "slow", Unit: "ms", Summary: loadtest.Summary{N: 1, P50: 5.1}, Aim: 5},
		{Scenario: "s", Measure: "many", Unit: "1/s", Summary: loadtest.Summary{N: 1, P50: 2000}, Aim: 2000},
		{Scenario: "s", Measure: "few", Unit: "1/s", Summary: loadtest.Summary{N: 1, P50: 1999}, Aim: 2000},
		{Scenario: "s", Measure: "free", Unit: "MB", Summary: loadtest.Summary{N: 1, P50: 80}},
	}}
	for i, want := range []string{"met", "missed", "met", "missed", ""} {
		if got := r.Lines[i].Verdict(); got != want {
			t.Errorf("verdict on %s: %q, want %q", r.Lines[i].Measure, got, want)
		}
	}
	var table, data bytes.Buffer
	if err := r.Print(&table); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(table.String()), "\n") {
		if i > 0 && !strings.Contains(line, r.Lines[i-1].Measure) {
			t.Errorf("line %d of the table does not tell of %s:\n%s", i, r.Lines[i-1].Measure, table.String())
		}
	}
	if err := r.JSON(&data); err != nil {
		t.Fatal(err)
	}
	var back loadtest.Report
	if err := json.Unmarshal(data.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Errorf("report through JSON (-want +got):\n%s", diff)
	}
}
