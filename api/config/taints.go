package config

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// ParseTaints parses KEY[=VALUE]:EFFECT, the syntax of kubectl taint.
func ParseTaints(texts []string) (taints []corev1.Taint, err error) {
	for _, text := range texts {
		name, effect, _ := strings.Cut(text, ":")
		key, value, _ := strings.Cut(name, "=")
		taints = append(taints, corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)})
		if err := validateTaint(taints[len(taints)-1]); err != nil {
			return nil, fmt.Errorf("taint %q: %w; write KEY[=VALUE]:EFFECT", text, err)
		}
	}
	return taints, validateTaints(taints)
}

func validateTaint(t corev1.Taint) error {
	var faults []error
	for _, fault := range validation.IsQualifiedName(t.Key) {
		faults = append(faults, fmt.Errorf("key %q: %s", t.Key, fault))
	}
	for _, fault := range validation.IsValidLabelValue(t.Value) {
		faults = append(faults, fmt.Errorf("value %q: %s", t.Value, fault))
	}
	effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
	if !slices.Contains(effects, t.Effect) {
		faults = append(faults, fmt.Errorf("effect %q is not one of %v", t.Effect, effects))
	}
	return errors.Join(faults...)
}

// validateTaints also refuses two taints of one key and effect, as the apiserver does.
func validateTaints(taints []corev1.Taint) error {
	var faults []error
	for i, taint := range taints {
		if err := validateTaint(taint); err != nil {
			faults = append(faults, fmt.Errorf("kubelet.registerWithTaints[%d]: %w", i, err))
		}
		if slices.ContainsFunc(taints[:i], func(earlier corev1.Taint) bool { return earlier.MatchTaint(&taint) }) {
			faults = append(faults, fmt.Errorf("kubelet.registerWithTaints[%d]: %s:%s is there twice", i, taint.Key, taint.Effect))
		}
	}
	return errors.Join(faults...)
}
