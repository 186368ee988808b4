package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// A count counts the results of the tests of one group.
type count struct{ all, passed, failed, skipped, missing, notApplicable int }

// summary sorts tests by their results.
type summary struct {
	groups  map[string]*count
	failed  []result
	skipped []result
	missing []string
	reasons map[string][]string // of tests that are not run: reason → tests
}

func summarizeResults(tests []string, results map[string]result, r rules) summary {
	s := summary{groups: map[string]*count{}, reasons: map[string][]string{}}
	for _, t := range tests {
		c := s.groups[testGroup(t)]
		if c == nil {
			c = &count{}
			s.groups[testGroup(t)] = c
		}
		c.all++
		if reason, not := reasonFor(r.NotApplicable, t); not {
			c.notApplicable++
			s.reasons[reason] = append(s.reasons[reason], t)
			continue
		}
		switch res, there := results[t]; {
		case !there:
			c.missing++
			s.missing = append(s.missing, t)
		case res.State == statePassed:
			c.passed++
		case res.State == stateSkipped:
			c.skipped++
			s.skipped = append(s.skipped, res)
		default:
			c.failed++
			s.failed = append(s.failed, res)
		}
	}
	return s
}

var groupPattern = regexp.MustCompile(`^\[(sig-[a-z-]+)\]`)

// testGroup returns the special interest group of a test.
func testGroup(test string) string {
	if m := groupPattern.FindStringSubmatch(test); m != nil {
		return m[1]
	}
	return "other"
}

// printSummary prints the results and reports whether all chosen tests have passed, except known failures.
func printSummary(out io.Writer, store resultStore, r rules, tests, chosen []string) (bool, error) {
	results, err := store.load()
	if err != nil {
		return false, err
	}
	s := summarizeResults(chosen, results, r)
	fmt.Fprintf(out, "\n%-20s %6s %6s %7s %8s %8s\n", "GROUP", "PASSED", "FAILED", "SKIPPED", "NOT RUN", "OF")
	names := make([]string, 0, len(s.groups))
	for name := range s.groups {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		c := s.groups[name]
		fmt.Fprintf(out, "%-20s %6d %6d %7d %8d %8d\n", name, c.passed, c.failed, c.skipped, c.missing, c.all)
	}
	ok := len(s.missing) == 0
	for _, res := range s.failed {
		reason, known := reasonFor(r.KnownFailures, res.Test)
		if !known {
			ok, reason = false, firstLine(res.Message)
		}
		fmt.Fprintf(out, "failed: %s\n        %s\n", res.Test, reason)
	}
	for _, res := range s.skipped {
		fmt.Fprintf(out, "skipped: %s\n        %s\n", res.Test, firstLine(res.Message))
	}
	fmt.Fprintf(out, "not applicable: %d of %d tests; see tools/conformance/applicability.yaml\n", len(tests)-countApplicable(tests, r), len(tests))
	return ok, nil
}

func countApplicable(tests []string, r rules) int {
	n := 0
	for _, t := range tests {
		if _, not := reasonFor(r.NotApplicable, t); !not {
			n++
		}
	}
	return n
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	const most = 200 // bytes of one line, so that a terminal stays readable
	if len(line) > most {
		line = line[:most] + "…"
	}
	return line
}
