package groups

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/groups/assignment"
)

// applyChange returns a map with the changes of a patch.
func applyChange(m map[string]string, change map[string]*string) map[string]string {
	out := map[string]string{}
	maps.Copy(out, m)
	for key, value := range change {
		if value == nil {
			delete(out, key)
		} else {
			out[key] = *value
		}
	}
	return out
}

func TestDecideNode(t *testing.T) {
	type keys map[string]string
	const belongs, zoneLabel, ours = names.LabelNodeGroup, corev1.LabelTopologyZone, names.AnnotationGroupZone
	for name, tt := range map[string]struct {
		labels, annotations         keys
		group                       string
		zone                        bool
		wantLabels, wantAnnotations keys
	}{
		"no group":                              {},
		"a new member":                          {group: "g", wantLabels: keys{belongs: "g"}},
		"a new member with its zone":            {group: "g", zone: true, wantLabels: keys{belongs: "g", zoneLabel: "g"}, wantAnnotations: keys{ours: "g"}},
		"a provider's zone stays":               {labels: keys{zoneLabel: "z"}, group: "g", zone: true, wantLabels: keys{belongs: "g", zoneLabel: "z"}},
		"also one of the group's name":          {labels: keys{zoneLabel: "g"}, group: "g", zone: true, wantLabels: keys{belongs: "g", zoneLabel: "g"}},
		"and after the group":                   {labels: keys{belongs: "g", zoneLabel: "g"}, wantLabels: keys{zoneLabel: "g"}},
		"an empty zone is a zone":               {labels: keys{zoneLabel: ""}, group: "g", zone: true, wantLabels: keys{belongs: "g", zoneLabel: ""}},
		"another group":                         {labels: keys{belongs: "g", zoneLabel: "g"}, annotations: keys{ours: "g"}, group: "h", zone: true, wantLabels: keys{belongs: "h", zoneLabel: "h"}, wantAnnotations: keys{ours: "h"}},
		"no zone any more":                      {labels: keys{belongs: "g", zoneLabel: "g"}, annotations: keys{ours: "g"}, group: "g", wantLabels: keys{belongs: "g"}},
		"no group any more":                     {labels: keys{belongs: "g", zoneLabel: "g", "site": "x"}, annotations: keys{ours: "g", "note": "x"}, wantLabels: keys{"site": "x"}, wantAnnotations: keys{"note": "x"}},
		"a zone that somebody changed is his":   {labels: keys{belongs: "g", zoneLabel: "z"}, annotations: keys{ours: "g"}, group: "g", zone: true, wantLabels: keys{belongs: "g", zoneLabel: "z"}},
		"a zone that somebody removed is wrong": {labels: keys{belongs: "g"}, annotations: keys{ours: "g"}, group: "g", zone: true, wantLabels: keys{belongs: "g", zoneLabel: "g"}, wantAnnotations: keys{ours: "g"}},
		"an annotation alone goes":              {annotations: keys{ours: "g"}},
		"a name that is no label":               {group: strings.Repeat("g", 64), zone: true},
		"a label of no group":                   {labels: keys{belongs: "gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: tt.labels, Annotations: tt.annotations}}
			change := decideNode(node, tt.group, tt.zone)
			node.Labels, node.Annotations = applyChange(tt.labels, change.labels), applyChange(tt.annotations, change.annotations)
			want := func(k keys) map[string]string { return applyChange(k, nil) }
			if diff := cmp.Diff(want(tt.wantLabels), node.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want(tt.wantAnnotations), node.Annotations); diff != "" {
				t.Errorf("annotations (-want +got):\n%s", diff)
			}
			if again := decideNode(node, tt.group, tt.zone); !again.empty() {
				t.Errorf("changed twice: %+v", again)
			}
		})
	}
}

// TestStatusOf_IsStable: a status that is written is not written again, and a condition keeps its time while it keeps its status.
func TestStatusOf_IsStable(t *testing.T) {
	g := &apps.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "g", Generation: 3}, Spec: apps.NodeGroupSpec{Nodes: []string{"a", "b", "c"}}}
	nodes := []assignment.Node{{Name: "a"}, {Name: "b"}}
	state := groupState{
		assigned: assignment.Assign([]assignment.Group{assignment.GroupOf(g), {Name: "holder", Nodes: []string{"b"}}}, nodes, map[string]string{"b": "holder"}),
		node: func(name string) *corev1.Node {
			return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
		},
	}
	first := time.Date(2026, 1, 1, 0, 0, 0, 500, time.UTC)
	g.Status = statusOf(g, state, first)
	if g.Status.Selected != 3 || g.Status.Members != 1 || g.Status.Ready != 1 || g.Status.ObservedGeneration != 3 {
		t.Errorf("counts: %+v", g.Status)
	}
	if again := statusOf(g, state, first.Add(time.Hour)); !sameStatus(g.Status, again) {
		t.Errorf("another status:\n%s", cmp.Diff(g.Status, again))
	}
	state.hold = hold{names.ReasonMassLeave, "held"}
	held := statusOf(g, state, first.Add(2*time.Hour))
	if diff := cmp.Diff([]statusEvent{{names.EventEvictionsHeld, "held"}}, statusEvents(g.Status.Conditions, held.Conditions), cmp.AllowUnexported(statusEvent{})); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	budget := g.DeepCopy()
	state.hold = hold{names.ReasonDisruptionBudget, "blocked"}
	budget.Status = statusOf(g, state, first.Add(time.Hour))
	state.hold = hold{names.ReasonMassLeave, "held"}
	since := meta.FindStatusCondition(statusOf(budget, state, first.Add(3*time.Hour)).Conditions, names.ConditionEvictionsHeld).LastTransitionTime
	if !since.After(first.Add(2 * time.Hour)) {
		t.Errorf("the time of the guard began at %s, before the mass leave", since)
	}
	for _, c := range held.Conditions {
		if late := c.LastTransitionTime.After(first); late != (c.Type == names.ConditionEvictionsHeld) {
			t.Errorf("%s changed at %s", c.Type, c.LastTransitionTime)
		}
	}
}

func TestMisplaced_Mass(t *testing.T) {
	on := func(nodes ...string) (pods []misplacedPod) {
		for i, node := range nodes {
			pods = append(pods, misplacedPod{key: types.NamespacedName{Namespace: "default", Name: fmt.Sprint("p", i)}, node: node})
		}
		return pods
	}
	guard := Guard{Share: 0.5, Minimum: 3}
	for name, tt := range map[string]struct {
		m    misplaced
		held bool
	}{
		"nothing left":          {newMisplaced(nil, 0), false},
		"most nodes":            {newMisplaced(on("a", "b", "c"), 2), true},
		"half of them":          {newMisplaced(on("a", "b", "b"), 2), false},
		"few pods":              {newMisplaced(on("a", "b"), 0), false},
		"the only node":         {newMisplaced(on("a", "a", "a"), 0), true},
		"the group was deleted": {func() misplaced { m := newMisplaced(on("a", "b", "c"), 0); m.deleted = true; return m }(), false},
		"confirmed":             {func() misplaced { m := newMisplaced(on("a", "b", "c"), 0); m.confirmed = m.token(); return m }(), false},
		"confirmed for other nodes": {func() misplaced {
			m := newMisplaced(on("a", "b", "c"), 0)
			m.confirmed = newMisplaced(on("a", "b"), 0).token()
			return m
		}(), true},
	} {
		if held := tt.m.mass(guard); held != tt.held {
			t.Errorf("%s: held: %t, want %t", name, held, tt.held)
		}
		if tt.m.mass(Guard{Minimum: 1}) {
			t.Errorf("%s: held without a share", name)
		}
	}
	if m := newMisplaced(on("b", "a", "b"), 0); m.token() != newMisplaced(on("a", "b"), 7).token() {
		t.Error("the token depends on the pods' number or order")
	}
}

func TestDemandedGroup(t *testing.T) {
	pod := func(change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", NodeSelector: map[string]string{names.LabelNodeGroup: "g"}}}
		change(p)
		return p
	}
	for name, tt := range map[string]struct {
		change   func(*corev1.Pod)
		mirror   bool
		demanded bool
	}{
		"a usual one":  {change: func(*corev1.Pod) {}, demanded: true},
		"a mirror pod": {change: func(*corev1.Pod) {}, mirror: true},
		"no selector":  {change: func(p *corev1.Pod) { p.Spec.NodeSelector = nil }},
		"not bound":    {change: func(p *corev1.Pod) { p.Spec.NodeName = "" }},
		"ended":        {change: func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }},
		"ending":       {change: func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.Now()) }},
		"of a ReplicaSet": {change: func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "ReplicaSet", Controller: new(true)}}
		}, demanded: true},
		"of a DaemonSet": {change: func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "DaemonSet", Controller: new(true)}}
		}},
	} {
		if group, ok := demandedGroup(pod(tt.change), tt.mirror); ok != tt.demanded || ok && group != "g" {
			t.Errorf("%s: %q %t", name, group, ok)
		}
	}
}
