package main

import (
	_ "embed"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/template"
	"time"
)

//go:embed page.md.tmpl
var pageText string

// pageData holds the values of the documentation page's template.
type pageData struct {
	Info   info
	Groups []pageGroup
	Total  count
	Failed []pageTest
	// Skipped are tests that skipped themselves because they do not apply.
	Skipped []pageTest
	Missing []string
	Reasons []pageReason
	// TwoGateways are tests that were run on two gateways.
	TwoGateways []string
}

type pageGroup struct {
	Name string
	Count
}

// Count is a count whose fields a template can read.
type Count struct{ All, Passed, Failed, Skipped, Missing, NotApplicable int }

type pageTest struct{ Test, Reason string }

type pageReason struct {
	Reason string
	Count  int
}

// writePage writes the results as Markdown; the same results give the same page.
func writePage(file string, store resultStore, r rules) error {
	i, err := store.readInfo()
	if err != nil {
		return fmt.Errorf("%w: run the tests first", err)
	}
	results, err := store.load()
	if err != nil {
		return err
	}
	page, err := template.New("page").Parse(pageText)
	if err != nil {
		return fmt.Errorf("read the template of the page: %w", err)
	}
	var text strings.Builder
	if err := page.Execute(&text, newPage(i, results, r)); err != nil {
		return fmt.Errorf("fill the page: %w", err)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

func newPage(i info, results map[string]result, r rules) pageData {
	s := summarizeResults(i.Tests, results, r)
	p := pageData{Info: i, Missing: s.missing}
	for _, name := range slices.Sorted(maps.Keys(s.groups)) {
		c := s.groups[name]
		if c.all == c.notApplicable {
			continue
		}
		p.Groups = append(p.Groups, pageGroup{Name: name, Count: c.templateCount()})
		p.Total.add(*c)
	}
	for _, res := range s.failed {
		reason, known := reasonFor(r.KnownFailures, res.Test)
		if !known {
			reason = "not explained yet: " + firstLine(res.Message)
		}
		p.Failed = append(p.Failed, pageTest{escapeMarkdown(res.Test), escapeMarkdown(reason)})
	}
	for _, res := range s.skipped {
		p.Skipped = append(p.Skipped, pageTest{escapeMarkdown(res.Test), escapeMarkdown(firstLine(res.Message))})
	}
	for _, reason := range slices.Sorted(maps.Keys(s.reasons)) {
		p.Reasons = append(p.Reasons, pageReason{reason, len(s.reasons[reason])})
	}
	for _, t := range i.Tests {
		if _, two := reasonFor(r.TwoGateways, t); two {
			p.TwoGateways = append(p.TwoGateways, escapeMarkdown(t))
		}
	}
	return p
}

func (c count) templateCount() Count {
	return Count{c.all, c.passed, c.failed, c.skipped, c.missing, c.notApplicable}
}

func (c *count) add(other count) {
	c.all += other.all
	c.passed += other.passed
	c.failed += other.failed
	c.skipped += other.skipped
	c.missing += other.missing
	c.notApplicable += other.notApplicable
}

// Counted returns the sum of the groups.
func (p pageData) Counted() Count { return p.Total.templateCount() }

// When returns the day of the last run.
func (p pageData) When() string { return p.Info.When.UTC().Format(time.DateOnly) }

// escapeMarkdown removes characters with a meaning in Markdown.
func escapeMarkdown(s string) string {
	return strings.NewReplacer("|", `\|`, "*", `\*`, "<", "&lt;", "\n", " ").Replace(s)
}
