package autonomy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/groups/assignment"
)

const (
	// defaultSeconds is the toleration that the apiserver gives a pod (DefaultTolerationSeconds).
	defaultSeconds = 300
)

// evictionTaints returns the taints by which Kubernetes evicts the pods of an unreachable node.
func evictionTaints() []string {
	return []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable}
}

// stay is how long pods stay on an unreachable node. The zero value: not specified.
type stay struct {
	specified bool
	seconds   *int64 // nil: without limit
}

// isDefault reports whether the Kubernetes default applies: no stay is specified, or it is zero.
func (s stay) isDefault() bool { return !s.specified || s.seconds != nil && *s.seconds == 0 }

// parseAnnotation parses the annotation of a Node or a NodeGroup.
func parseAnnotation(annotations map[string]string) (stay, error) {
	value := annotations[names.AnnotationAutonomy]
	switch value {
	case "":
		return stay{}, nil
	case names.AutonomyForever:
		return stay{specified: true}, nil
	}
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 {
		return stay{}, fmt.Errorf("annotation %s: %q is neither %q nor a duration such as 12h", names.AnnotationAutonomy, value, names.AutonomyForever)
	}
	seconds := int64(d / time.Second)
	return stay{specified: true, seconds: &seconds}, nil
}

// nodeGroup is the part of a NodeGroup that this package needs.
type nodeGroup struct {
	selects assignment.Group
	choice  choice
}

// newNodeGroup converts a NodeGroup.
func newNodeGroup(o *apps.NodeGroup) (nodeGroup, error) {
	s, err := parseAnnotation(o.Annotations)
	return nodeGroup{selects: assignment.GroupOf(o), choice: choice{stay: s, value: o.Annotations[names.AnnotationAutonomy], group: o.Name}}, err
}

// choice is how long the pods of a Node stay, and the object that specifies it.
type choice struct {
	stay
	// value is the value of the annotation; group is the NodeGroup that carries it, "" for the Node itself.
	value, group string
}

// sameSource reports whether two choices are the same annotation value of the same object.
func (c choice) sameSource(other choice) bool {
	return c.value == other.value && c.group == other.group
}

// chooseStay returns the stay of a Node. The Node's own annotation wins, even if it is zero. An annotation that cannot
// be parsed counts as absent. Otherwise the longest stay of its groups wins; among equal ones that of the first group by name.
func chooseStay(node *corev1.Node, groups map[string]nodeGroup) choice {
	if own, err := parseAnnotation(node.Annotations); err == nil && own.specified {
		return choice{stay: own, value: node.Annotations[names.AnnotationAutonomy]}
	}
	var best choice
	for _, g := range groups {
		c := g.choice
		if c.isDefault() || !g.selects.AsksFor(assignment.NodeOf(node)) {
			continue
		}
		equal := ptr.Equal(c.seconds, best.seconds)
		if best.isDefault() || longerTime(c.seconds, best.seconds) || equal && c.group < best.group {
			best = c
		}
	}
	return best
}

// tolerationPatch is the change of a pod's tolerations.
type tolerationPatch struct {
	tolerations []corev1.Toleration
	// before is the new value of names.AnnotationToleratedBefore, nil to remove it.
	before *string
}

// stayFor returns how long a pod stays on a node with a taint: as the node specifies, but without limit while the node is unreachable if
// the pod has KubeEdge's label for that.
func stayFor(pod *corev1.Pod, taint string, want stay) stay {
	if taint == corev1.TaintNodeUnreachable && pod.Labels[names.LabelOfflineAutonomy] == names.OfflineAutonomy {
		return stay{specified: true}
	}
	return want
}

// decide returns the change that a pod needs on a node with this stay; nil for none.
func decide(pod *corev1.Pod, want stay) *tolerationPatch {
	kept, changed := pod.Annotations[names.AnnotationToleratedBefore]
	before := map[string]*int64{}
	if changed && json.Unmarshal([]byte(kept), &before) != nil {
		before = map[string]*int64{} // the annotation was overwritten
	}
	p := &tolerationPatch{tolerations: slices.Clone(pod.Spec.Tolerations)}
	maps.DeleteFunc(before, func(taint string, _ *int64) bool { return !slices.Contains(evictionTaints(), taint) })
	for _, taint := range evictionTaints() {
		if s := stayFor(pod, taint, want); !s.isDefault() {
			p.extendTime(taint, s.seconds, before)
		} else if original, ours := before[taint]; ours {
			p.restoreTime(taint, original)
			delete(before, taint)
		}
	}
	if len(before) > 0 {
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

// resetEviction turns p into an intermediate step for a pod of a node that Kubernetes already considers lost. Kubernetes
// keeps the time of a planned eviction, whatever other time the pod then tolerates, and drops the plan only if the pod
// tolerates the taint without limit. wait says that the pod is in that step, and has to stay in it until Kubernetes has seen it.
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
			p.before = mergeBefore(pod.Annotations[names.AnnotationToleratedBefore], ptr.Deref(p.before, "")) // all of it must still be restored later
		}
	}
	return wait
}

// mergeBefore merges two values of names.AnnotationToleratedBefore. Where both contain the same taint, they have the same value for it.
func mergeBefore(a, b string) *string {
	before := map[string]*int64{}
	for _, text := range []string{a, b} {
		_ = json.Unmarshal([]byte(text), &before) // an empty text has no entries
	}
	text, _ := json.Marshal(before) // a map of numbers always encodes
	return new(string(text))
}

// nodeLost reports whether Kubernetes plans to evict the pods of a Node.
func nodeLost(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoExecute && slices.Contains(evictionTaints(), t.Key)
	})
}

// extendTime sets the toleration time of a taint, and records the previous time in before if this is the first change.
// It never shortens the time that the pod had before.
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

// toleratesTaint reports whether a toleration is the one that applies to a taint: Kubernetes uses the first that matches.
func toleratesTaint(t corev1.Toleration, taint string) bool {
	effect := t.Effect == "" || t.Effect == corev1.TaintEffectNoExecute
	key := t.Key == taint || t.Key == "" && t.Operator == corev1.TolerationOpExists
	return effect && key && (t.Operator == corev1.TolerationOpExists || t.Value == "")
}

// longerTime reports whether a is a longer time than b; nil is without limit.
func longerTime(a, b *int64) bool {
	return b != nil && (a == nil || *a > *b)
}

func sameTolerations(a, b []corev1.Toleration) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.Toleration) bool {
		return x.MatchToleration(&y) && ptr.Equal(x.TolerationSeconds, y.TolerationSeconds)
	})
}
