// Package rollout decides in which order groups of nodes get a new revision of an application: a pure function of the plan, the groups, what
// is known of their pods, and the status of the rollout, which is all the state there is.
package rollout

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// maxPlanBytes bounds a plan: an annotation of this size has hundreds of steps.
const maxPlanBytes = 32 << 10

// Plan is the order of a rollout.
type Plan struct {
	Steps []Step
	// Threshold is the least part of the pods on nodes with a link that must be ready, from 0 to 1.
	Threshold float64
	// Soak is how long they must be ready without interruption.
	Soak time.Duration
	// Manual asks for the approval of a person after each step.
	Manual bool
}

// Step adds groups to those of the steps before: either the named ones, or as many as it takes to have Percent of all groups.
type Step struct {
	Groups  []string
	Percent int
}

// DefaultThreshold is that of a plan that names none: all pods.
const DefaultThreshold = 1.0

// The fields of the annotation.
type planText struct {
	Steps            []stepText       `json:"steps"`
	SuccessThreshold string           `json:"successThreshold"`
	Soak             *metav1.Duration `json:"soak"`
	Approval         string           `json:"approval"`
}

type stepText struct {
	Groups  []string `json:"groups"`
	Percent *int     `json:"percent"`
}

// ParsePlan reads the annotation frond.io/rollout, JSON or YAML. Errors name the field, so that a person can mend it. A step that repeats a group or
// does not go beyond the percentage before it can never change anything, so it is refused: its author meant something else.
func ParsePlan(text string) (Plan, error) {
	if len(text) > maxPlanBytes {
		return Plan{}, fmt.Errorf("the plan has %d bytes, more than %d", len(text), maxPlanBytes)
	}
	var fields planText
	if err := yaml.UnmarshalStrict([]byte(text), &fields); err != nil {
		return Plan{}, fmt.Errorf("read the plan: %w", err)
	}
	p := Plan{Threshold: DefaultThreshold}
	var faults [4]error
	p.Steps, faults[0] = parseSteps(fields.Steps)
	if fields.SuccessThreshold != "" {
		p.Threshold, faults[1] = parsePercent(fields.SuccessThreshold)
	}
	if fields.Soak != nil {
		p.Soak = fields.Soak.Duration
		if p.Soak < 0 {
			faults[2] = fmt.Errorf("soak %s is negative", p.Soak)
		}
	}
	switch fields.Approval {
	case "", "auto":
	case "manual":
		p.Manual = true
	default:
		faults[3] = fmt.Errorf("approval %q is neither auto nor manual", fields.Approval)
	}
	return p, errors.Join(faults[:]...)
}

func parseSteps(texts []stepText) ([]Step, error) {
	if len(texts) == 0 {
		return nil, errors.New("steps is empty")
	}
	var steps []Step
	seen := map[string]int{}
	percent := 0
	for i, text := range texts {
		switch {
		case len(text.Groups) > 0 && text.Percent != nil:
			return nil, fmt.Errorf("steps[%d] has groups and percent: make two steps of it", i)
		case len(text.Groups) == 0 && text.Percent == nil:
			return nil, fmt.Errorf("steps[%d] has neither groups nor percent", i)
		case text.Percent != nil && (*text.Percent < 1 || *text.Percent > 100):
			return nil, fmt.Errorf("steps[%d].percent is %d, not from 1 to 100", i, *text.Percent)
		case text.Percent != nil && *text.Percent <= percent:
			return nil, fmt.Errorf("steps[%d].percent is %d, no more than %d of a step before", i, *text.Percent, percent)
		}
		for _, group := range text.Groups {
			if before, again := seen[group]; again {
				return nil, fmt.Errorf("steps[%d].groups repeats %s of steps[%d]", i, group, before)
			}
			seen[group] = i
		}
		step := Step{Groups: slices.Clone(text.Groups)}
		if text.Percent != nil {
			step.Percent, percent = *text.Percent, *text.Percent
		}
		steps = append(steps, step)
	}
	return steps, nil
}

// parsePercent reads "95%".
func parsePercent(text string) (float64, error) {
	digits, ok := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseFloat(digits, 64)
	if !ok || err != nil || math.IsNaN(percent) || percent < 0 || percent > 100 {
		return 0, fmt.Errorf("successThreshold %q is not a percentage from 0%% to 100%%", text)
	}
	return percent / 100, nil
}

// groupsUpTo returns the groups of all steps up to and including step i, given all groups in order of their names. The step after the last
// one has all groups. A named group that is none of them is returned as unknown.
func (p Plan) groupsUpTo(i int, names []string) (groups map[string]bool, unknown []string) {
	groups = map[string]bool{}
	if i >= len(p.Steps) {
		for _, name := range names {
			groups[name] = true
		}
		return groups, nil
	}
	for _, step := range p.Steps[:i+1] {
		for _, name := range step.Groups {
			if slices.Contains(names, name) {
				groups[name] = true
			} else {
				unknown = append(unknown, name)
			}
		}
		wanted := (len(names)*step.Percent + 99) / 100
		for _, name := range names {
			if len(groups) >= wanted {
				break
			}
			groups[name] = true
		}
	}
	return groups, unknown
}
