package loadtest

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"text/tabwriter"
)

// ReportLine is one measurement of a report.
type ReportLine struct {
	Scenario string `json:"scenario"`
	Measure  string `json:"measure"`
	Unit     string `json:"unit"`
	Summary
	// Peer is KubeEdge's value of the same measurement, "" where there is none.
	Peer string `json:"peer,omitempty"`
	// Aim is the target of the median: an upper bound for times, a lower bound for rates; 0 is no target.
	Aim float64 `json:"aim,omitempty"`
}

// The units. More of a rate is better, of all others less.
const (
	unitTime   = "ms"
	unitRate   = "1/s"
	unitMemory = "MB"
	unitCPU    = "µs"
	// unitTraffic counts bytes of TCP payload, TLS included.
	unitTraffic = "MB/h"
	unitSmall   = "KB"
	unitLarge   = "GB"
)

// Verdict reports whether the target is met; "" without a target.
func (l ReportLine) Verdict() string {
	switch {
	case l.Aim == 0 || l.N == 0:
		return ""
	case l.Unit == unitRate && l.P50 >= l.Aim, l.Unit != unitRate && l.P50 <= l.Aim:
		return "met"
	default:
		return "missed"
	}
}

func (l ReportLine) aimText() string {
	switch {
	case l.Aim == 0:
		return ""
	case l.Unit == unitRate:
		return "≥ " + formatNumber(l.Aim)
	default:
		return "≤ " + formatNumber(l.Aim)
	}
}

// Report is the outcome of a run.
type Report struct {
	Setup Setup        `json:"setup"`
	Lines []ReportLine `json:"lines"`
	// Loads is the machine's load average of one minute at the start of each scenario.
	Loads map[string]float64 `json:"loads"`
}

// Print writes the table.
func (r Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SCENARIO\tMEASURE\tUNIT\tN\tP50\tP99\tMIN\tMAX\tPEER\tAIM (P50)\t")
	for _, l := range r.Lines {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", l.Scenario, l.Measure, l.Unit, l.N,
			formatNumber(l.P50), formatNumber(l.P99), formatNumber(l.Min), formatNumber(l.Max), l.Peer, l.aimText(), l.Verdict())
	}
	fmt.Fprintln(t)
	for _, name := range slices.Sorted(maps.Keys(r.Loads)) {
		fmt.Fprintf(t, "load at the start of %s\t%.2f\n", name, r.Loads[name])
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("write table: %w", err)
	}
	return nil
}

// JSON writes the whole report on one line.
func (r Report) JSON(w io.Writer) error {
	if err := json.NewEncoder(w).Encode(r); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return nil
}

// formatNumber shows three digits or the whole part, more than the precision of the measurement.
func formatNumber(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}
