package autonomy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
)

func tolerationPair(notReady, unreachable *int64) []corev1.Toleration {
	one := func(key string, seconds *int64) corev1.Toleration {
		return corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: seconds}
	}
	return []corev1.Toleration{one(corev1.TaintNodeNotReady, notReady), one(corev1.TaintNodeUnreachable, unreachable)}
}

func TestDecidePlace(t *testing.T) {
	usual, day := tolerationPair(ptr.To[int64](300), ptr.To[int64](300)), tolerationPair(ptr.To[int64](86400), ptr.To[int64](86400))
	ever := tolerationPair(nil, nil)
	const usualBefore = `{"node.kubernetes.io/not-ready":300,"node.kubernetes.io/unreachable":300}`
	for name, tt := range map[string]struct {
		has    []corev1.Toleration
		before string
		asks   string
		want   []corev1.Toleration // nil: no change
		after  string
	}{
		"nobody asks":                 {has: usual},
		"for ever":                    {has: usual, asks: "forever", want: ever, after: usualBefore},
		"a day":                       {has: usual, asks: "24h", want: day, after: usualBefore},
		"done already":                {has: ever, before: usualBefore, asks: "forever"},
		"from for ever to a day":      {has: ever, before: usualBefore, asks: "24h", want: day, after: usualBefore},
		"the pod's own is longer":     {has: ever, asks: "24h"},
		"to less than it had":         {has: ever, before: usualBefore, asks: "1m", want: usual},
		"to nothing":                  {has: ever, before: usualBefore, asks: "0s", want: usual},
		"nothing is asked for":        {asks: "0"},
		"it had none, for a minute":   {asks: "1m", want: usual},
		"the annotation went":         {has: ever, before: usualBefore, want: usual},
		"it had none":                 {asks: "forever", want: ever, after: usualBefore},
		"not understood":              {has: usual, asks: "soon"},
		"somebody spoilt what it had": {has: ever, before: "?", want: ever},
		"everything is tolerated":     {has: []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, asks: "forever"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}, Spec: corev1.PodSpec{Tolerations: tt.has}}
			if tt.before != "" {
				pod.Annotations[names.AnnotationToleratedBefore] = tt.before
			}
			annotations := map[string]string{}
			if tt.asks != "" {
				annotations[names.AnnotationAutonomy] = tt.asks
			}
			want, err := parseAnnotation(annotations)
			if (err != nil) != (tt.asks == "soon") {
				t.Errorf("parse: %v", err)
			}
			got := decide(pod, want)
			if tt.want == nil {
				if got != nil {
					t.Fatalf("decide: %+v, want no change", got)
				}
				return
			}
			if got == nil {
				t.Fatal("decide: no change")
			}
			if diff := cmp.Diff(tt.want, got.tolerations); diff != "" {
				t.Errorf("tolerations (-want +got):\n%s", diff)
			}
			if after := ptr.Deref(got.before, ""); after != tt.after {
				t.Errorf("before is %q, want %q", after, tt.after)
			}
			pod.Spec.Tolerations = got.tolerations
			if got.before == nil {
				delete(pod.Annotations, names.AnnotationToleratedBefore)
			} else {
				pod.Annotations[names.AnnotationToleratedBefore] = *got.before
			}
			if again := decide(pod, want); again != nil {
				t.Errorf("decided twice: %+v", again)
			}
		})
	}
}

// TestDecide_OfflineAutonomyLabel: KubeEdge's label keeps a pod while its node is unreachable, beside what the node specifies.
func TestDecide_OfflineAutonomyLabel(t *testing.T) {
	minutes, day := ptr.To[int64](300), ptr.To[int64](86400)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{names.LabelOfflineAutonomy: names.OfflineAutonomy}, Annotations: map[string]string{}},
		Spec:       corev1.PodSpec{Tolerations: tolerationPair(minutes, minutes)},
	}
	for _, step := range []struct {
		what    string
		label   string
		seconds *int64 // of the node
		want    []corev1.Toleration
		before  string
	}{
		{"the label alone", names.OfflineAutonomy, new(int64(0)), tolerationPair(minutes, nil), `{"node.kubernetes.io/unreachable":300}`},
		{"and the node's day", names.OfflineAutonomy, day, tolerationPair(day, nil), `{"node.kubernetes.io/not-ready":300,"node.kubernetes.io/unreachable":300}`},
		{"the node's day is over", names.OfflineAutonomy, new(int64(0)), tolerationPair(minutes, nil), `{"node.kubernetes.io/unreachable":300}`},
		{"another value", "no", new(int64(0)), tolerationPair(minutes, minutes), ""},
	} {
		pod.Labels[names.LabelOfflineAutonomy] = step.label
		got := decide(pod, stay{specified: true, seconds: step.seconds})
		if got == nil {
			t.Fatalf("%s: no change", step.what)
		}
		if diff := cmp.Diff(step.want, got.tolerations); diff != "" {
			t.Errorf("%s: tolerations (-want +got):\n%s", step.what, diff)
		}
		if before := ptr.Deref(got.before, ""); before != step.before {
			t.Errorf("%s: before is %q, want %q", step.what, before, step.before)
		}
		pod.Spec.Tolerations = got.tolerations
		pod.Annotations = map[string]string{}
		if got.before != nil {
			pod.Annotations[names.AnnotationToleratedBefore] = *got.before
		}
		if again := decide(pod, stay{specified: true, seconds: step.seconds}); again != nil {
			t.Errorf("%s: decided twice: %+v", step.what, again)
		}
	}
}

// TestTolerationPatch_ResetsPlannedEviction follows pods of a node that Kubernetes has lost, step by step.
func TestTolerationPatch_ResetsPlannedEviction(t *testing.T) {
	minutes, day, ever := ptr.To[int64](300), ptr.To[int64](86400), (*int64)(nil)
	hours := ptr.To[int64](7200)
	const before = `{"node.kubernetes.io/not-ready":300,"node.kubernetes.io/unreachable":300}`
	const uneven = `{"node.kubernetes.io/not-ready":300,"node.kubernetes.io/unreachable":7200}`
	for name, tt := range map[string]struct {
		has    []corev1.Toleration
		before string
		asks   string
		steps  [][]corev1.Toleration
	}{
		"longer":             {tolerationPair(minutes, minutes), "", "24h", [][]corev1.Toleration{tolerationPair(ever, ever), tolerationPair(day, day)}},
		"for ever":           {tolerationPair(minutes, minutes), "", "forever", [][]corev1.Toleration{tolerationPair(ever, ever)}},
		"shorter":            {tolerationPair(day, day), before, "2h", [][]corev1.Toleration{tolerationPair(ever, ever), tolerationPair(hours, hours)}},
		"no more":            {tolerationPair(day, day), before, "", [][]corev1.Toleration{tolerationPair(ever, ever), tolerationPair(minutes, minutes)}},
		"no more for ever":   {tolerationPair(ever, ever), before, "", [][]corev1.Toleration{tolerationPair(minutes, minutes)}},
		"its own for one":    {tolerationPair(day, day), uneven, "1h", [][]corev1.Toleration{tolerationPair(ever, ever), tolerationPair(ptr.To[int64](3600), hours)}},
		"its own is as long": {tolerationPair(minutes, minutes), "", "1m", nil},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}, Spec: corev1.PodSpec{Tolerations: tt.has}}
			if tt.before != "" {
				pod.Annotations[names.AnnotationToleratedBefore] = tt.before
			}
			want, err := parseAnnotation(map[string]string{names.AnnotationAutonomy: tt.asks})
			if err != nil {
				t.Fatal(err)
			}
			var steps [][]corev1.Toleration
			for p := decide(pod, want); p != nil; p = decide(pod, want) {
				if wait, ever := p.resetEviction(pod), pod.Spec.Tolerations[0].TolerationSeconds == nil; wait != ever {
					t.Errorf("step %d: waits %v", len(steps), wait)
				}
				if steps = append(steps, p.tolerations); len(steps) > 3 {
					t.Fatalf("no end: %v", steps)
				}
				pod.Spec.Tolerations = p.tolerations
				delete(pod.Annotations, names.AnnotationToleratedBefore)
				if p.before != nil {
					pod.Annotations[names.AnnotationToleratedBefore] = *p.before
				}
			}
			if diff := cmp.Diff(tt.steps, steps); diff != "" {
				t.Errorf("steps (-want +got):\n%s", diff)
			}
		})
	}
}

func TestChooseStay(t *testing.T) {
	named := func(name, value string, nodes ...string) *apps.NodeGroup {
		return &apps.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{names.AnnotationAutonomy: value}}, Spec: apps.NodeGroupSpec{Nodes: nodes}}
	}
	labelled := func(value string, labels map[string]string) *apps.NodeGroup {
		g := named("labelled", value)
		g.Spec.MatchLabels = labels
		return g
	}
	type groups = []*apps.NodeGroup
	for name, tt := range map[string]struct {
		own    string
		groups groups
		want   string // value and group
	}{
		"nobody says anything":             {groups: groups{{Spec: apps.NodeGroupSpec{Nodes: []string{"n"}}}}, want: "@"},
		"the group that names it":          {groups: groups{named("a", "12h", "m", "n")}, want: "12h@a"},
		"a group that names others":        {groups: groups{named("a", "12h", "m")}, want: "@"},
		"all labels of a group":            {groups: groups{labelled("12h", map[string]string{"site": "north", "kind": ""})}, want: "12h@labelled"},
		"labels that decide no membership": {groups: groups{labelled("12h", map[string]string{"kubernetes.io/arch": "arm64"})}, want: "12h@labelled"},
		"another value of a label":         {groups: groups{labelled("12h", map[string]string{"site": "south"})}, want: "@"},
		"one label of two":                 {groups: groups{labelled("12h", map[string]string{"site": "north", "floor": ""})}, want: "@"},
		"no labels select none":            {groups: groups{labelled("12h", map[string]string{})}, want: "@"},
		"the longest of several":           {groups: groups{named("a", "12h", "n"), named("b", "90m", "n"), labelled("13h", map[string]string{"site": "north"})}, want: "13h@labelled"},
		"for ever is the longest":          {groups: groups{named("a", "12h", "n"), named("b", "forever", "n"), named("c", "9999h", "n")}, want: "forever@b"},
		"the first of equals":              {groups: groups{named("b", "1h", "n"), named("c", "1h", "n"), named("a", "60m", "n")}, want: "60m@a"},
		"the first of those for ever":      {groups: groups{named("b", "forever", "n"), named("a", "forever", "n")}, want: "forever@a"},
		"the Node's own is shorter":        {own: "1h", groups: groups{named("a", "forever", "n")}, want: "1h@"},
		"the Node wants none of it":        {own: "0s", groups: groups{named("a", "forever", "n")}, want: "0s@"},
		"the Node's is not understood":     {own: "soon", groups: groups{named("a", "1h", "n")}, want: "1h@a"},
		"the group's is not understood":    {groups: groups{named("a", "soon", "n"), named("b", "-1h", "n"), named("c", "1h", "n")}, want: "1h@c"},
		"a group for no time and one more": {groups: groups{named("a", "0s", "n"), named("b", "1h", "n")}, want: "1h@b"},
		"a group for no time":              {groups: groups{named("a", "0s", "n")}, want: "@"},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"site": "north", "kind": "", "kubernetes.io/arch": "arm64"}, Annotations: map[string]string{names.AnnotationAutonomy: tt.own}}}
			read := map[string]nodeGroup{}
			for _, o := range tt.groups {
				read[o.Name], _ = newNodeGroup(o)
			}
			if c := chooseStay(node, read); c.value+"@"+c.group != tt.want {
				t.Errorf("%s@%s, want %s", c.value, c.group, tt.want)
			}
		})
	}
}
