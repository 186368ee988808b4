package autonomy

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/frond-edge/frond/api/wire"
)

const (
	// Annotation is wire's, for short.
	Annotation = wire.AutonomyAnnotation
	// Forever is wire's, for short.
	Forever = wire.AutonomyForever
	// beforeAnnotation of a pod holds the seconds it tolerated before, by taint.
	beforeAnnotation = "frond.io/tolerated-before"
	// defaultSeconds is what the apiserver gives a pod (DefaultTolerationSeconds).
	defaultSeconds = 300
)

// taints are those by which Kubernetes evicts the pods of a node that went silent.
func taints() []string { return []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} }

// stay is how long pods stay on an unreachable node. The zero value: as Kubernetes has it.
type stay struct {
	asked   bool
	seconds *int64 // nil: for ever
}

// parse reads the annotation of a Node.
func parse(annotations map[string]string) (stay, error) {
	value, ok := annotations[Annotation]
	switch {
	case !ok:
		return stay{}, nil
	case value == Forever:
		return stay{asked: true}, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return stay{}, fmt.Errorf("annotation %s: %q is neither %q nor a duration such as 12h", Annotation, value, Forever)
	}
	seconds := int64(d / time.Second)
	return stay{asked: true, seconds: &seconds}, nil
}

// patch is what a pod should have otherwise than it has.
type patch struct {
	tolerations []corev1.Toleration
	// before is the value of beforeAnnotation, nil to remove it.
	before *string
}

// decide returns the change that a pod needs on a node whose pods stay so long; nil for none.
func decide(pod *corev1.Pod, want stay) *patch {
	kept, changed := pod.Annotations[beforeAnnotation]
	before := map[string]*int64{}
	if changed && json.Unmarshal([]byte(kept), &before) != nil {
		before = map[string]*int64{} // somebody wrote over it
	}
	p := &patch{tolerations: slices.Clone(pod.Spec.Tolerations)}
	for _, taint := range taints() {
		if want.asked {
			p.extend(taint, want.seconds, before)
		} else if original, ours := before[taint]; ours {
			p.restore(taint, original)
		}
	}
	if want.asked && len(before) > 0 {
		text, _ := json.Marshal(before) // a map of numbers always encodes
		value := string(text)
		p.before = &value
	}
	annotated := p.before == nil && !changed || p.before != nil && *p.before == kept
	if annotated && same(p.tolerations, pod.Spec.Tolerations) {
		return nil
	}
	return p
}

// extend gives a taint its time and notes in before what was there, if it is the first change.
func (p *patch) extend(taint string, seconds *int64, before map[string]*int64) {
	i := p.find(taint)
	if i < 0 {
		before[taint] = ptr.To[int64](defaultSeconds)
		p.tolerations = append(p.tolerations, corev1.Toleration{
			Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds,
		})
		return
	}
	had := p.tolerations[i].TolerationSeconds
	if _, ours := before[taint]; !ours {
		if !longer(seconds, had) {
			return
		}
		before[taint] = had
	}
	p.tolerations[i].TolerationSeconds = seconds
}

func (p *patch) restore(taint string, original *int64) {
	if i := p.find(taint); i >= 0 {
		p.tolerations[i].TolerationSeconds = original
	}
}

// find returns the index of the toleration that decides about a taint, or -1.
func (p *patch) find(taint string) int {
	return slices.IndexFunc(p.tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) })
}

// tolerates reports whether a toleration is the one that decides about a taint: Kubernetes takes the first that matches.
func tolerates(t corev1.Toleration, taint string) bool {
	effect := t.Effect == "" || t.Effect == corev1.TaintEffectNoExecute
	key := t.Key == taint || t.Key == "" && t.Operator == corev1.TolerationOpExists
	return effect && key && (t.Operator == corev1.TolerationOpExists || t.Value == "")
}

// longer reports whether a is a longer time than b; nil is for ever.
func longer(a, b *int64) bool {
	return b != nil && (a == nil || *a > *b)
}

func same(a, b []corev1.Toleration) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.Toleration) bool {
		return x.MatchToleration(&y) && ptr.Equal(x.TolerationSeconds, y.TolerationSeconds)
	})
}
