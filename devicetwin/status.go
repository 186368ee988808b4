package devicetwin

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/frond-edge/frond/api/devices"
)

// The reasons of the conditions.
const (
	ReasonRefused      = "Refused"
	ReasonConfirmed    = "Confirmed"
	ReasonNotConfirmed = "NotConfirmed"
	ReasonReported     = "Reported"
	ReasonDiffers      = "Differs"
	ReasonNoDesired    = "NoDesiredValues"
	ReasonOverridden   = "Overridden"
	// ReasonNotUnderstood, ReasonReducing and ReasonAllKept are the reasons of the condition Reduction.
	ReasonNotUnderstood = "NotUnderstood"
	ReasonReducing      = "Reducing"
	ReasonAllKept       = "AllKept"
)

// extensionKey is ours in status.extensions.
const extensionKey = "frond"

// Delta returns the desired values that the device does not report: those that an app or mapper has to apply. Refused ones are not among them.
func Delta(spec Spec, r Record) map[string]string {
	delta := map[string]string{}
	for _, p := range spec.Properties {
		if desired, ok := p.applicable(); ok && !p.holds(r.Reported, desired) {
			delta[p.Name] = desired
		}
	}
	return delta
}

// applicable returns the desired value if there is one that can be applied.
func (p PropertySpec) applicable() (string, bool) {
	if p.Desired == nil || p.Refused != nil {
		return "", false
	}
	return p.Desired.Value, true
}

// holds reports whether the sample of the property has a value.
func (p PropertySpec) holds(samples map[string]Sample, value string) bool {
	sample := samples[p.Name]
	return sample.Exists() && same(p.Type, sample.Value, value)
}

// Conditions returns the conditions of a record. One whose status is as before keeps its time.
func Conditions(spec Spec, r Record, before []metav1.Condition, now time.Time) []metav1.Condition {
	conditions := slices.Clone(before)
	all := []metav1.Condition{accepted(spec, r), applied(spec, r)}
	if c := reducing(spec); c.Reason != ReasonAllKept || meta.FindStatusCondition(before, c.Type) != nil {
		all = append(all, c)
	}
	for _, c := range all {
		c.ObservedGeneration, c.LastTransitionTime = spec.Generation, metav1.NewTime(now.UTC().Truncate(time.Second))
		meta.SetStatusCondition(&conditions, c)
	}
	if c, active := overridden(spec); active {
		c.ObservedGeneration, c.LastTransitionTime = spec.Generation, metav1.NewTime(now.UTC().Truncate(time.Second))
		meta.SetStatusCondition(&conditions, c)
	} else {
		meta.RemoveStatusCondition(&conditions, devices.ConditionLocalOverride)
	}
	return conditions
}

func accepted(spec Spec, r Record) metav1.Condition {
	c := metav1.Condition{Type: devices.ConditionAccepted}
	var refused, unconfirmed []string
	desired := 0
	for _, p := range spec.Properties {
		if no := p.refusal(); no != nil {
			refused = append(refused, no.Error())
		}
		value, ok := p.applicable()
		waits := p.Override != nil && p.Override.Device != nil && p.Override.Refused == nil // for the end of an override that is refused
		if !ok && !waits {
			continue
		}
		desired++
		if !ok || !p.holds(r.Observed, value) && !p.holds(r.Reported, value) {
			unconfirmed = append(unconfirmed, p.Name)
		}
	}
	switch {
	case len(refused) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonRefused, join(refused)
	case desired == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonNoDesired, "the Device has no desired values"
	case len(unconfirmed) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionUnknown, ReasonNotConfirmed, "not yet confirmed: "+join(unconfirmed)
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonConfirmed, "each desired value is confirmed"
	}
	return c
}

func applied(spec Spec, r Record) metav1.Condition {
	c := metav1.Condition{Type: devices.ConditionApplied}
	var differs, overridden []string
	desired := 0
	for _, p := range spec.Properties {
		wanted := p.wanted()
		if wanted == nil {
			continue
		}
		desired++
		switch reported := p.holds(r.Reported, wanted.Value); {
		case p.Override != nil && !reported:
			overridden = append(overridden, p.Name)
		case p.Override == nil && (p.Refused != nil || !reported):
			differs = append(differs, p.Name)
		}
	}
	switch {
	case desired == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonNoDesired, "the Device has no desired values"
	case len(overridden) > 0:
		c.Status, c.Reason = metav1.ConditionFalse, ReasonOverridden
		c.Message = "values that were set on the gateway win until they end, over: " + join(overridden)
		if len(differs) > 0 {
			c.Message += "; the device does not report the desired value of: " + join(differs)
		}
	case len(differs) > 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonDiffers, "the device does not report the desired value of: "+join(differs)
	default:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, ReasonReported, "the device reports each desired value"
	}
	return c
}

// reducing says whether the annotations about telemetry are followed.
func reducing(spec Spec) metav1.Condition {
	c := metav1.Condition{Type: devices.ConditionReduction, Status: metav1.ConditionTrue}
	switch {
	case spec.ReductionFault != "":
		text := "all samples are kept: " + spec.ReductionFault
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, ReasonNotUnderstood, strings.ToValidUTF8(text[:min(len(text), maxRefusal)], "")
	case spec.reduced() > 0:
		c.Reason, c.Message = ReasonReducing, fmt.Sprintf("samples of %d properties are reduced", spec.reduced())
	default:
		c.Reason, c.Message = ReasonAllKept, "all samples are kept"
	}
	return c
}

// join lists the first names, so that a message stays far below the 32 KiB that Kubernetes allows.
func join(list []string) string {
	const most = 20
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
	}
	return strings.Join(list, ", ")
}

// Status returns the status of the DeviceStatus, as KubeEdge shows it: the twins in the order of the Device, only those with a value.
func Status(spec Spec, r Record, conditions []metav1.Condition) (devices.DeviceStatusReport, error) {
	status := devices.DeviceStatusReport{State: r.State.Value, LastOnlineTime: r.LastOnlineTime()}
	for _, p := range spec.Properties {
		twin := devices.Twin{PropertyName: p.Name, Reported: twinValue(r.Reported[p.Name]), ObservedDesired: twinValue(r.Observed[p.Name])}
		if twin.Reported != nil || twin.ObservedDesired != nil {
			status.Twins = append(status.Twins, twin)
		}
	}
	ours := map[string]any{}
	if len(conditions) > 0 {
		ours["conditions"] = conditions
	}
	if overrides := overridesOf(spec); len(overrides) > 0 {
		ours["overrides"] = overrides
	}
	if len(ours) > 0 {
		raw, err := json.Marshal(map[string]any{extensionKey: ours})
		if err != nil {
			return status, fmt.Errorf("encode conditions: %w", err)
		}
		status.Extensions = &runtime.RawExtension{Raw: raw}
	}
	return status, nil
}

func twinValue(s Sample) *devices.TwinProperty {
	if !s.Exists() {
		return nil
	}
	return &devices.TwinProperty{Value: s.Value, Metadata: map[string]string{"timestamp": strconv.FormatInt(s.Time, 10), "type": TypeName(s)}}
}

// TypeName returns the type of a sample as KubeEdge shows it.
func TypeName(s Sample) string {
	if s.Type == "" {
		return "string"
	}
	return s.Type
}

// LastOnlineTime returns LastOnline as KubeEdge writes it (RFC 3339, UTC, whole seconds), or "".
func (r Record) LastOnlineTime() string {
	if r.LastOnline == 0 {
		return ""
	}
	return time.UnixMilli(r.LastOnline).UTC().Format(time.RFC3339)
}
