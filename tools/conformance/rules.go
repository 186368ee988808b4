package main

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

//go:embed applicability.yaml
var applicability []byte

//go:embed subset.txt
var subset string

// rules select the tests that are not run, those that need two gateways, and those that are expected to fail, with reasons.
type rules struct {
	NotApplicable []rule `json:"notApplicable"`
	TwoGateways   []rule `json:"twoGateways"`
	KnownFailures []rule `json:"knownFailures"`
}

// rule applies to tests whose name matches Test and not Except, which may be empty. Both are regular expressions.
type rule struct {
	Test   string `json:"test"`
	Except string `json:"except"`
	Reason string `json:"reason"`

	pattern, exception *regexp.Regexp
}

func (r rule) matches(test string) bool {
	return r.pattern.MatchString(test) && (r.exception == nil || !r.exception.MatchString(test))
}

func loadRules() (rules, error) {
	var r rules
	if err := yaml.UnmarshalStrict(applicability, &r); err != nil {
		return r, fmt.Errorf("read applicability.yaml: %w", err)
	}
	if err := errors.Join(compileRules(r.NotApplicable), compileRules(r.TwoGateways), compileRules(r.KnownFailures)); err != nil {
		return r, fmt.Errorf("read applicability.yaml: %w", err)
	}
	return r, nil
}

func compileRules(list []rule) error {
	for i := range list {
		pattern, err := regexp.Compile(list[i].Test)
		if err != nil {
			return err
		}
		if list[i].Except != "" {
			if list[i].exception, err = regexp.Compile(list[i].Except); err != nil {
				return err
			}
		}
		if list[i].Reason == "" {
			return fmt.Errorf("%s has no reason", list[i].Test)
		}
		list[i].pattern = pattern
	}
	return nil
}

// reasonFor returns the reason of the first rule that a test matches.
func reasonFor(list []rule, test string) (string, bool) {
	for _, r := range list {
		if r.matches(test) {
			return r.Reason, true
		}
	}
	return "", false
}

// chooseTests returns the tests to run.
func chooseTests(o options, tests []string, r rules) ([]string, error) {
	focus, err := regexp.Compile(o.focus)
	if err != nil {
		return nil, fmt.Errorf("read -focus: %w", err)
	}
	if o.subset {
		return subsetOf(tests)
	}
	return slices.DeleteFunc(slices.Clone(tests), func(t string) bool {
		_, not := reasonFor(r.NotApplicable, t)
		return not || !focus.MatchString(t)
	}), nil
}

// subsetOf returns the tests of subset.txt. All must exist: a test that upstream has renamed would otherwise silently be left out.
func subsetOf(tests []string) ([]string, error) {
	var chosen []string
	for line := range strings.Lines(subset) {
		name := strings.TrimSpace(line)
		if name == "" || strings.HasPrefix(name, "#") {
			continue
		}
		if !slices.Contains(tests, name) {
			return nil, fmt.Errorf("subset.txt: this version of Kubernetes has no test %q", name)
		}
		chosen = append(chosen, name)
	}
	return chosen, nil
}

// testPass is a set of tests that run on the same number of gateways.
type testPass struct {
	gateways int
	tests    []string
}

// splitPasses splits tests by the number of gateways that they need, the fewest first.
func (r rules) splitPasses(tests []string) []testPass {
	one, two := testPass{gateways: 1}, testPass{gateways: 2}
	for _, t := range tests {
		if _, needs := reasonFor(r.TwoGateways, t); needs {
			two.tests = append(two.tests, t)
		} else {
			one.tests = append(one.tests, t)
		}
	}
	return slices.DeleteFunc([]testPass{one, two}, func(p testPass) bool { return len(p.tests) == 0 })
}
