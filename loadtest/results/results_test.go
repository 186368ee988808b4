package results_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/loadtest/results"
)

func TestSummarize(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	rand.Shuffle(len(hundred), func(i, j int) { hundred[i], hundred[j] = hundred[j], hundred[i] })
	for name, tt := range map[string]struct {
		samples []float64
		want    results.Summary
	}{
		"none":    {},
		"one":     {[]float64{7}, results.Summary{N: 1, Min: 7, P50: 7, P99: 7, Max: 7}},
		"two":     {[]float64{9, 1}, results.Summary{N: 2, Min: 1, P50: 1, P99: 9, Max: 9}},
		"hundred": {hundred, results.Summary{N: 100, Min: 1, P50: 50, P99: 99, Max: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			before := append([]float64(nil), tt.samples...)
			if diff := cmp.Diff(tt.want, results.Summarize(tt.samples)); diff != "" {
				t.Errorf("summary (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tt.samples); diff != "" {
				t.Errorf("the samples were changed: %s", diff)
			}
		})
	}
}

func TestReport(t *testing.T) {
	r := results.Report{Lines: []results.Line{
		{Scenario: "s", Measure: results.Measure{Text: "fast", Unit: "ms", Peer: "13.7", Aim: 5}, Summary: results.Summary{N: 3, Min: 1, P50: 4.999, P99: 8, Max: 9}},
		{Scenario: "s", Measure: results.Measure{Text: "slow", Unit: "ms", Aim: 5}, Summary: results.Summary{N: 1, P50: 5.1}},
		{Scenario: "s", Measure: results.Measure{Text: "many", Unit: "1/s", Aim: 2000}, Summary: results.Summary{N: 1, P50: 2000}},
		{Scenario: "s", Measure: results.Measure{Text: "few", Unit: "1/s", Aim: 2000}, Summary: results.Summary{N: 1, P50: 1999}},
		{Scenario: "s", Measure: results.Measure{Text: "free", Unit: "MB"}, Summary: results.Summary{N: 1, P50: 80}},
	}}
	for i, want := range []string{"met", "missed", "met", "missed", ""} {
		if got := r.Lines[i].Verdict(); got != want {
			t.Errorf("verdict on %s: %q, want %q", r.Lines[i].Text, got, want)
		}
	}
	var table, data bytes.Buffer
	if err := r.Print(&table); err != nil {
		t.Fatal(err)
	}
	for i, line := range strings.Split(strings.TrimSpace(table.String()), "\n") {
		if i > 0 && !strings.Contains(line, r.Lines[i-1].Text) {
			t.Errorf("line %d of the table does not tell of %s:\n%s", i, r.Lines[i-1].Text, table.String())
		}
	}
	if err := r.JSON(&data); err != nil {
		t.Fatal(err)
	}
	var back results.Report
	if err := json.Unmarshal(data.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, back); diff != "" {
		t.Errorf("report through JSON (-want +got):\n%s", diff)
	}
}
