// Package reduction decides which samples of a property are kept: those that differ from the one kept before by more than a deadband, or at all, and one
// when a time is over. It also reads how durably they are kept. The rules are annotations of the Device. It is functions on values: no clock, no memory.
package reduction

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/frond-edge/frond/api/names"
)

// minInterval is the shortest MaxInterval: below it nothing is saved.
const minInterval = time.Second

// Rule says which samples of a property are kept, and how. The zero Rule keeps all, synced before they are answered.
type Rule struct {
	// ChangeOnly: a value that is as the one kept before is not kept.
	ChangeOnly bool
	// Deadband, if it is not 0, is how far a number has to be from the one kept before to be kept: further than this. Another value is kept if it differs.
	Deadband float64
	// MaxInterval, if it is not 0, is the time after which a sample is kept whatever its value.
	MaxInterval time.Duration
	// Flow: a sample is answered before it is synced.
	Flow bool
}

// Reduces reports whether any sample may be left out.
func (r Rule) Reduces() bool { return r.ChangeOnly || r.Deadband != 0 }

// Sample is a value with its time: the device's, or the gateway's if the device gave none.
type Sample struct {
	Value string
	Time  time.Time
}

// Keep reports whether a sample is kept; last is the one that was kept before. One of an earlier time than last is kept: it is late, and fills a gap.
func (r Rule) Keep(last, s Sample) bool {
	since := s.Time.Sub(last.Time)
	switch {
	case !r.Reduces(), since < 0, r.MaxInterval > 0 && since >= r.MaxInterval:
		return true
	case s.Value == last.Value:
		return false
	case r.Deadband == 0:
		return true
	}
	before, after, ok := numbers(last.Value, s.Value)
	return !ok || math.Abs(after-before) > r.Deadband
}

// numbers returns two values as numbers, if both are.
func numbers(a, b string) (x, y float64, ok bool) {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	return x, y, errX == nil && errY == nil && !math.IsNaN(x) && !math.IsNaN(y) && !math.IsInf(x, 0) && !math.IsInf(y, 0)
}

// Parse reads the rules of a Device by property. types has the types of its properties in the words of a DeviceModel, "" for an unknown one. An error
// joins all faults; then there are no rules. Without such annotations there are none.
func Parse(annotations, types map[string]string) (map[string]Rule, error) {
	rules := map[string]Rule{}
	var faults []error
	for _, key := range slices.Sorted(maps.Keys(annotations)) { // the same text each time
		prefix, property, set := cut(key)
		if !set {
			continue
		}
		kind, found := types[property]
		rule := rules[property]
		err := rule.set(prefix, annotations[key], kind)
		if !found {
			err = errors.New("the Device has no such property")
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", key, err))
		}
		rules[property] = rule
	}
	for _, property := range slices.Sorted(maps.Keys(rules)) {
		if r := rules[property]; r.MaxInterval > 0 && !r.Reduces() && len(faults) == 0 {
			faults = append(faults, fmt.Errorf("%s%s: it needs %s or %s beside it: all samples are kept", names.AnnotationMaxInterval, property, names.AnnotationDeadband, names.AnnotationChangeOnly))
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return rules, nil
}

// cut splits the key of an annotation that is about reduction.
func cut(key string) (prefix, property string, ok bool) {
	for _, prefix := range []string{names.AnnotationDeadband, names.AnnotationChangeOnly, names.AnnotationMaxInterval, names.AnnotationDurability} {
		if property, ok := strings.CutPrefix(key, prefix); ok {
			return prefix, property, true
		}
	}
	return "", "", false
}

// set sets what an annotation says of a property of a type.
func (r *Rule) set(prefix, value, kind string) error {
	var err error
	switch prefix {
	case names.AnnotationDeadband:
		if r.Deadband, err = strconv.ParseFloat(value, 64); err != nil || r.Deadband <= 0 || math.IsInf(r.Deadband, 0) || math.IsNaN(r.Deadband) {
			return fmt.Errorf("%q is not a number above 0", clip(value))
		}
		if kind != "" && !slices.Contains([]string{"INT", "FLOAT", "DOUBLE"}, kind) {
			return fmt.Errorf("the type of the property is %s, which has no deadband", kind)
		}
	case names.AnnotationChangeOnly:
		if value != "true" && value != "false" {
			return fmt.Errorf("%q is neither true nor false", clip(value))
		}
		r.ChangeOnly = value == "true"
	case names.AnnotationDurability:
		if value != "exact" && value != "flow" {
			return fmt.Errorf("%q is neither exact nor flow", clip(value))
		}
		r.Flow = value == "flow"
	default:
		if r.MaxInterval, err = time.ParseDuration(value); err != nil || r.MaxInterval < minInterval {
			return fmt.Errorf("%q is not a duration of %s or more, such as 10m", clip(value), minInterval)
		}
	}
	return nil
}

// clip shortens a value for a message.
func clip(value string) string {
	const most = 40
	return strings.ToValidUTF8(value[:min(len(value), most)], "")
}
