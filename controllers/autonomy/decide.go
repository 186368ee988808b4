package autonomy

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/frond-edge/frond/api/apps"
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

// evictionTaints are those by which Kubernetes evicts the pods of a node that went silent.
func evictionTaints() []string {
	return []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}
}

// stay is how long pods stay on an unreachable node. The zero value: nobody has said anything.
type stay struct {
	specified bool
	seconds   *int64 // nil: for ever
}

// isDefault reports whether pods stay as Kubernetes has it: nobody asks, or not for any time.
func (s stay) isDefault() bool { return !s.specified || s.seconds != nil && *s.seconds == 0 }

// parseAnnotation reads the annotation of a Node or a NodeGroup.
func parseAnnotation(annotations map[string]string) (stay, error) {
	value := annotations[Annotation]
	switch value {
	case "":
		return stay{}, nil
	case Forever:
		return stay{specified: true}, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return stay{}, fmt.Errorf("annotation %s: %q is neither %q nor a duration such as 12h", Annotation, value, Forever)
	}
	seconds := int64(d / time.Second)
	return stay{specified: true, seconds: &seconds}, nil
}

// nodeGroup is a NodeGroup, as far as it matters here.
type nodeGroup struct {
	nodes  map[string]bool
	labels map[string]string
	choice choice
}

// newNodeGroup reads a NodeGroup.
func newNodeGroup(o *apps.NodeGroup) (nodeGroup, error) {
	s, err := parseAnnotation(o.Annotations)
	g := nodeGroup{nodes: make(map[string]bool, len(o.Spec.Nodes)), labels: o.Spec.MatchLabels, choice: choice{stay: s, value: o.Annotations[Annotation], group: o.Name}}
	for _, name := range o.Spec.Nodes {
		g.nodes[name] = true
	}
	return g, err
}

// hasMember reports whether a Node is a member.
func (g nodeGroup) hasMember(node *corev1.Node) bool {
	if g.nodes[node.Name] {
		return true
	}
	for key, value := range g.labels {
		if has, ok := node.Labels[key]; !ok || has != value {
			return false
		}
	}
	return len(g.labels) > 0
}

// choice is how long the pods of a Node stay, and by whose word.
type choice struct {
	stay
	// value is the annotation's; group is the NodeGroup that has it, "" for the Node itself.
	value, group string
}

// sameSource reports whether two choices are the same word of the same object.
func (c choice) sameSource(other choice) bool {
	return c.value == other.value && c.group == other.group
}

// chooseStay decides for a Node: what it says itself counts, and be it no time at all. What can't be understood is as if it were not
// there. Else the longest time of its groups counts, of equals that of the first by name.
func chooseStay(node *corev1.Node, groups map[string]nodeGroup) choice {
	if own, err := parseAnnotation(node.Annotations); err == nil && own.specified {
		return choice{stay: own, value: node.Annotations[Annotation]}
	}
	var best choice
	for _, g := range groups {
		c := g.choice
		if c.isDefault() || !g.hasMember(node) {
			continue
		}
		equal := ptr.Equal(c.seconds, best.seconds)
		if best.isDefault() || longerTime(c.seconds, best.seconds) || equal && c.group < best.group {
			best = c
		}
	}
	return best
}

// tolerationPatch is what a pod should have otherwise than it has.
type tolerationPatch struct {
	tolerations []corev1.Toleration
	// before is the value of beforeAnnotation, nil to remove it.
	before *string
}

// decide returns the change that a pod needs on a node whose pods stay so long; nil for none.
func decide(pod *corev1.Pod, want stay) *tolerationPatch {
	kept, changed := pod.Annotations[beforeAnnotation]
	before := map[string]*int64{}
	if changed && json.Unmarshal([]byte(kept), &before) != nil {
		before = map[string]*int64{} // somebody wrote over it
	}
	p := &tolerationPatch{tolerations: slices.Clone(pod.Spec.Tolerations)}
	for _, taint := range evictionTaints() {
		if !want.isDefault() {
			p.extendTime(taint, want.seconds, before)
		} else if original, ours := before[taint]; ours {
			p.restoreTime(taint, original)
		}
	}
	if !want.isDefault() && len(before) > 0 {
		text, _ := json.Marshal(before) // a map of numbers always encodes
		value := string(text)
		p.before = &value
	}
	annotated := p.before == nil && !changed || p.before != nil && *p.before == kept
	if annotated && sameTolerations(p.tolerations, pod.Spec.Tolerations) {
		return nil
	}
	return p
}

// resetEviction is how a pod of a node that Kubernetes has lost already gets to p: Kubernetes keeps the time of an eviction that it has
// planned, whatever other time the pod then tolerates, and forgets it only if the pod tolerates for ever. So p becomes that step;
// wait says that the pod is there, and is to stay so until Kubernetes has seen it.
func (p *tolerationPatch) resetEviction(pod *corev1.Pod) (wait bool) {
	for _, taint := range evictionTaints() {
		i := slices.IndexFunc(pod.Spec.Tolerations, func(t corev1.Toleration) bool { return toleratesTaint(t, taint) })
		j := p.indexOf(taint)
		if i < 0 || j < 0 {
			continue
		}
		is, next := pod.Spec.Tolerations[i].TolerationSeconds, p.tolerations[j].TolerationSeconds
		switch {
		case next == nil || ptr.Equal(is, next):
		case is == nil:
			wait = true
		default:
			p.tolerations[j].TolerationSeconds = nil
			p.before = mergeBefore(pod.Annotations[beforeAnnotation], ptr.Deref(p.before, "")) // all is still to be given back
		}
	}
	return wait
}

// mergeBefore is what two values of beforeAnnotation have together; where they have the same taint, they say the same of it.
func mergeBefore(a, b string) *string {
	before := map[string]*int64{}
	for _, text := range []string{a, b} {
		_ = json.Unmarshal([]byte(text), &before) // or there is none
	}
	text, _ := json.Marshal(before) // a map of numbers always encodes
	return new(string(text))
}

// nodeLost reports whether Kubernetes plans to evict from a Node.
func nodeLost(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute && slices.Contains(evictionTaints(), t.Key)
	})
}

// extendTime gives a taint its time and notes in before what was there, if it is the first change. What the pod had before is never
// cut short.
func (p *tolerationPatch) extendTime(taint string, seconds *int64, before map[string]*int64) {
	i := p.indexOf(taint)
	if i < 0 {
		i = len(p.tolerations)
		p.tolerations = append(p.tolerations, corev1.Toleration{
			Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr.To[int64](defaultSeconds),
		})
	}
	had := p.tolerations[i].TolerationSeconds
	if original, ours := before[taint]; ours {
		had = original
	}
	p.tolerations[i].TolerationSeconds = had
	delete(before, taint)
	if longerTime(seconds, had) {
		p.tolerations[i].TolerationSeconds, before[taint] = seconds, had
	}
}

func (p *tolerationPatch) restoreTime(taint string, original *int64) {
	if i := p.indexOf(taint); i >= 0 {
		p.tolerations[i].TolerationSeconds = original
	}
}

// indexOf returns the index of the toleration that decides about a taint, or -1.
func (p *tolerationPatch) indexOf(taint string) int {
	return slices.IndexFunc(p.tolerations, func(t corev1.Toleration) bool { return toleratesTaint(t, taint) })
}

// toleratesTaint reports whether a toleration is the one that decides about a taint: Kubernetes takes the first that matches.
func toleratesTaint(t corev1.Toleration, taint string) bool {
	effect := t.Effect == "" || t.Effect == corev1.TaintEffectNoExecute
	key := t.Key == taint || t.Key == "" && t.Operator == corev1.TolerationOpExists
	return effect && key && (t.Operator == corev1.TolerationOpExists || t.Value == "")
}

// longerTime reports whether a is a longer time than b; nil is for ever.
func longerTime(a, b *int64) bool {
	return b != nil && (a == nil || *a > *b)
}

func sameTolerations(a, b []corev1.Toleration) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.Toleration) bool {
		return x.MatchToleration(&y) && ptr.Equal(x.TolerationSeconds, y.TolerationSeconds)
	})
}
