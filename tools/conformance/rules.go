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

// rules say which tests are not run, and why some of those that are run are expected to fail.
type rules struct {
	NotApplicable []rule `json:"notApplicable"`
	KnownFailures []rule `json:"knownFailures"`
}

type rule struct {
	Test    string `json:"test"` // regular expression on the name of a test
	Reason  string `json:"reason"`
	pattern *regexp.Regexp
}

func loadRules() (rules, error) {
	var r rules
	if err := yaml.UnmarshalStrict(applicability, &r); err != nil {
		return r, fmt.Errorf("read applicability.yaml: %w", err)
	}
	if err := errors.Join(compileRules(r.NotApplicable), compileRules(r.KnownFailures)); err != nil {
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
		if r.pattern.MatchString(test) {
			return r.Reason, true
		}
	}
	return "", false
}

// choose returns the tests to run.
func (o options) choose(tests []string, r rules) ([]string, error) {
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

// subsetOf returns the tests of subset.txt, each of which has to be there: a name that upstream has changed would be run no more.
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
