// Package report writes the outcome of a run of frond loadtest: as JSON, as JUnit XML for CI, and as one HTML page with plots that needs
// nothing from elsewhere.
package report

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/frond-edge/frond/loadtest/exercise"
)

// Report is the outcome of a run; its JSON is stable.
type Report struct {
	Run     string            `json:"run"`
	Plan    string            `json:"plan"`
	Version string            `json:"version"`
	Began   time.Time         `json:"began"`
	Phases  []exercise.Result `json:"phases"`
	// Judgements are those of the whole run.
	Judgements []exercise.Judgement `json:"judgements"`
	// Interrupted says why the run ended early; "" if it did not.
	Interrupted string `json:"interrupted,omitempty"`
	// KilobytesPerGateway is what a gateway took of this process, at the end of the first phase; 0 with fewer than 100, which say nothing.
	KilobytesPerGateway float64  `json:"kilobytesPerGateway"`
	Sizing              []string `json:"sizing"`
}

// Pass reports whether every judge has passed.
func (r *Report) Pass() bool {
	failed := func(j exercise.Judgement) bool { return !j.Pass }
	return r.Interrupted == "" && !slices.ContainsFunc(r.Judgements, failed) &&
		!slices.ContainsFunc(r.Phases, func(p exercise.Result) bool { return slices.ContainsFunc(p.Judgements, failed) })
}

// Failures returns the judgements that did not pass, with their phases.
func (r *Report) Failures() (all []string) {
	add := func(where string, judgements []exercise.Judgement) {
		for _, j := range judgements {
			if !j.Pass {
				all = append(all, where+": "+j.Name+": "+j.Detail)
			}
		}
	}
	for i, p := range r.Phases {
		add(phaseName(i, p), p.Judgements)
	}
	add("run", r.Judgements)
	if r.Interrupted != "" {
		all = append(all, "run: ended early: "+r.Interrupted)
	}
	return all
}

func phaseName(i int, p exercise.Result) string { return fmt.Sprintf("phase %d, %s", i+1, p.Kind) }

// Write writes report.json, junit.xml and report.html into a folder, which it makes.
func (r *Report) Write(dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	junit, err := r.JUnit()
	if err != nil {
		return err
	}
	page, err := r.HTML()
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"report.json": append(text, '\n'), "junit.xml": junit, "report.html": page} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}

type suite struct {
	XMLName  xml.Name   `xml:"testsuite"`
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Cases    []testCase `xml:"testcase"`
}

type testCase struct {
	Class   string   `xml:"classname,attr"`
	Name    string   `xml:"name,attr"`
	Seconds float64  `xml:"time,attr"`
	Failure *failure `xml:"failure,omitempty"`
}

type failure struct {
	Message string `xml:"message,attr"`
}

// JUnit returns the judgements as JUnit XML, each as one test.
func (r *Report) JUnit() ([]byte, error) {
	s := suite{Name: "frond loadtest " + r.Plan}
	add := func(class string, seconds float64, judgements []exercise.Judgement) {
		for _, j := range judgements {
			c := testCase{Class: class, Name: j.Name, Seconds: math.Round(seconds)}
			if !j.Pass {
				c.Failure = &failure{j.Detail}
				s.Failures++
			}
			s.Cases = append(s.Cases, c)
		}
	}
	for i, p := range r.Phases {
		add(phaseName(i, p), p.Seconds, p.Judgements)
	}
	ended := exercise.Judgement{Name: "the run ends", Pass: r.Interrupted == "", Detail: r.Interrupted}
	add("run", 0, append(slices.Clone(r.Judgements), ended))
	s.Tests = len(s.Cases)
	text, err := xml.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("JUnit: %w", err)
	}
	return append([]byte(xml.Header), append(text, '\n')...), nil
}

// Text returns the report for a terminal.
func (r *Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-4s %-8s %8s %7s %10s %10s %10s %8s %9s %10s %9s %9s\n", "", "PHASE", "SECONDS", "COUNT", "P50", "P99", "MAX", "MISSING", "GATEWAYS", "API P50", "MESSAGES", "LINKS MB")
	ms := func(v float64) string {
		return time.Duration(v * float64(time.Millisecond)).Round(time.Millisecond / 10).String()
	}
	for i, p := range r.Phases {
		fmt.Fprintf(&b, "%-4d %-8s %8.1f %7d %10s %10s %10s %8d %9d %10s %9d %9.2f\n", i+1, p.Kind, p.Seconds, p.Latency.Count, ms(p.Latency.P50), ms(p.Latency.P99), ms(p.Latency.Max),
			p.Missing, p.Gateways, ms(p.Answers.P50), p.Messages, float64(p.Sent+p.Received)/1e6) //nolint:mnd // megabytes
	}
	if r.KilobytesPerGateway > 0 {
		fmt.Fprintf(&b, "%.0f KB a gateway in this process\n", r.KilobytesPerGateway)
	}
	for _, line := range r.Sizing {
		b.WriteString(line + "\n")
	}
	return b.String()
}
