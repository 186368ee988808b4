package assignment_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/groups/assignment"
)

func at(hour int) time.Time { return time.Date(2026, 1, 1, hour, 0, 0, 0, time.UTC) }

func TestAssign(t *testing.T) {
	site := func(s string) map[string]string { return map[string]string{"site": s} }
	nodes := []assignment.Node{{Name: "a", Labels: site("north")}, {Name: "b", Labels: site("north")}, {Name: "c"}}
	for name, tt := range map[string]struct {
		groups    []assignment.Group
		held      map[string]string
		members   map[string][]string
		conflicts map[string][]assignment.Conflict
		missing   map[string][]string
	}{
		"names and labels are a union": {
			groups:  []assignment.Group{{Name: "north", Nodes: []string{"c", "a", "c"}, MatchLabels: site("north")}},
			members: map[string][]string{"north": {"a", "b", "c"}},
		},
		"no labels select none": {
			groups:  []assignment.Group{{Name: "none", MatchLabels: map[string]string{}}, {Name: "nil"}},
			members: map[string][]string{"none": nil, "nil": nil},
		},
		"all labels must match": {
			groups:  []assignment.Group{{Name: "north", MatchLabels: map[string]string{"site": "north", "floor": "1"}}},
			members: map[string][]string{"north": nil},
		},
		"an empty value is not a missing label": {
			groups:  []assignment.Group{{Name: "north", MatchLabels: site("")}},
			members: map[string][]string{"north": nil},
		},
		"the oldest gets it": {
			groups:    []assignment.Group{{Name: "late", Created: at(2), Nodes: []string{"a"}}, {Name: "x-early", Created: at(1), Nodes: []string{"a"}}},
			members:   map[string][]string{"x-early": {"a"}, "late": nil},
			conflicts: map[string][]assignment.Conflict{"late": {{Node: "a", Holder: "x-early"}}},
		},
		"of the same age the first by name": {
			groups:    []assignment.Group{{Name: "y", Nodes: []string{"a"}}, {Name: "x", Nodes: []string{"a"}}},
			members:   map[string][]string{"x": {"a"}, "y": nil},
			conflicts: map[string][]assignment.Conflict{"y": {{Node: "a", Holder: "x"}}},
		},
		"the holder keeps it": {
			groups:    []assignment.Group{{Name: "late", Created: at(2), Nodes: []string{"a"}}, {Name: "early", Created: at(1), Nodes: []string{"a"}}},
			held:      map[string]string{"a": "late"},
			members:   map[string][]string{"late": {"a"}, "early": nil},
			conflicts: map[string][]assignment.Conflict{"early": {{Node: "a", Holder: "late"}}},
		},
		"a holder that asks no more lets go": {
			groups:  []assignment.Group{{Name: "late", Created: at(2), Nodes: []string{"a"}}, {Name: "early", Created: at(1)}},
			held:    map[string]string{"a": "early"},
			members: map[string][]string{"late": {"a"}, "early": nil},
		},
		"a holder that is gone lets go": {
			groups:  []assignment.Group{{Name: "late", Created: at(2), Nodes: []string{"a"}}},
			held:    map[string]string{"a": "deleted"},
			members: map[string][]string{"late": {"a"}},
		},
		"a named node does not exist": {
			groups:  []assignment.Group{{Name: "north", Nodes: []string{"z", "y", "z", "a"}}},
			members: map[string][]string{"north": {"a"}},
			missing: map[string][]string{"north": {"y", "z"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := assignment.Assign(tt.groups, nodes, tt.held)
			for _, g := range tt.groups {
				if diff := cmp.Diff(tt.members[g.Name], got.Members(g.Name)); diff != "" {
					t.Errorf("members of %s (-want +got):\n%s", g.Name, diff)
				}
				if diff := cmp.Diff(tt.conflicts[g.Name], got.Conflicts(g.Name)); diff != "" {
					t.Errorf("conflicts of %s (-want +got):\n%s", g.Name, diff)
				}
				if diff := cmp.Diff(tt.missing[g.Name], got.Missing(g.Name)); diff != "" {
					t.Errorf("missing nodes of %s (-want +got):\n%s", g.Name, diff)
				}
			}
		})
	}
}

// TestAssign_UntrustedLabels: a label that a gateway sets itself, or that says the result, selects nothing; also not together with another.
func TestAssign_UntrustedLabels(t *testing.T) {
	for _, key := range append(names.KubeletLabels(), names.LabelNodeGroup) {
		node := assignment.Node{Name: "a", Labels: map[string]string{key: "v", "site": "north"}}
		g := assignment.Group{Name: "g", MatchLabels: map[string]string{key: "v", "site": "north"}}
		a := assignment.Assign([]assignment.Group{g}, []assignment.Node{node}, map[string]string{"a": "g"})
		if group, member := a.GroupOf("a"); member {
			t.Errorf("%s: member of %s", key, group)
		}
		if diff := cmp.Diff([]string{key}, g.UntrustedLabels()); diff != "" {
			t.Errorf("untrusted labels (-want +got):\n%s", diff)
		}
		g.Nodes = []string{"a"}
		if !g.Selects(node) {
			t.Errorf("%s: a group with the label does not select the node that it names", key)
		}
	}
}

// randomCluster makes groups and nodes with few names and labels, so that many overlap.
func randomCluster(r *rand.Rand) (groups []assignment.Group, nodes []assignment.Node, held map[string]string) {
	keys := []string{"site", "line", names.LabelNodeGroup}
	labels := func() map[string]string {
		m := map[string]string{}
		for range r.IntN(3) {
			m[keys[r.IntN(len(keys))]] = fmt.Sprint(r.IntN(2))
		}
		return m
	}
	held = map[string]string{}
	for i := range r.IntN(6) {
		g := assignment.Group{Name: fmt.Sprint("g", i), Created: at(r.IntN(3)), MatchLabels: labels()}
		for range r.IntN(3) {
			g.Nodes = append(g.Nodes, fmt.Sprint("n", r.IntN(8)))
		}
		groups = append(groups, g)
	}
	for i := range r.IntN(7) {
		n := assignment.Node{Name: fmt.Sprint("n", i), Labels: labels()}
		nodes = append(nodes, n)
		if r.IntN(2) == 0 {
			held[n.Name] = fmt.Sprint("g", r.IntN(7))
		}
	}
	return groups, nodes, held
}

// TestAssign_Properties checks random clusters against the rules, stated as a user would state them.
func TestAssign_Properties(t *testing.T) {
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test that can be repeated
		groups, nodes, held := randomCluster(r)
		a := assignment.Assign(groups, nodes, held)
		for _, n := range nodes {
			checkNode(t, seed, groups, n, held[n.Name], a)
		}
		r.Shuffle(len(groups), func(i, j int) { groups[i], groups[j] = groups[j], groups[i] })
		r.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		if !a.Equal(assignment.Assign(groups, nodes, held)) {
			t.Fatalf("seed %d: another order gives another assignment", seed)
		}
		now := map[string]string{}
		for _, n := range nodes {
			if g, member := a.GroupOf(n.Name); member {
				now[n.Name] = g
			}
		}
		if !a.Equal(assignment.Assign(groups, nodes, now)) {
			t.Fatalf("seed %d: the assignment changes once it is held", seed)
		}
	}
}

func checkNode(t *testing.T, seed uint64, groups []assignment.Group, n assignment.Node, held string, a assignment.Assignment) {
	t.Helper()
	group, member := a.GroupOf(n.Name)
	selected := false
	for _, g := range groups {
		in := slices.Contains(a.Members(g.Name), n.Name)
		if in != (member && group == g.Name) {
			t.Fatalf("seed %d: GroupOf(%s) is %q, Members(%s) says %t", seed, n.Name, group, g.Name, in)
		}
		lost := slices.Contains(a.Conflicts(g.Name), assignment.Conflict{Node: n.Name, Holder: group})
		if lost != (g.Selects(n) && !in) {
			t.Fatalf("seed %d: conflict of %s about %s: %t", seed, g.Name, n.Name, lost)
		}
		if !g.Selects(n) {
			if in {
				t.Fatalf("seed %d: %s is in %s, which does not ask for it", seed, n.Name, g.Name)
			}
			continue
		}
		selected = true
		if g.Name == held && group != held {
			t.Fatalf("seed %d: the holder %s lost %s", seed, held, n.Name)
		}
	}
	if selected != member {
		t.Fatalf("seed %d: %s is asked for: %t, and a member: %t", seed, n.Name, selected, member)
	}
}

// TestHeld: what the statuses say counts for groups that still ask for the Node.
func TestHeld(t *testing.T) {
	group := func(name string, hour int, spec apps.NodeGroupSpec, statuses ...apps.NodeStatus) *apps.NodeGroup {
		return &apps.NodeGroup{
			ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(at(hour))},
			Spec:       spec, Status: apps.NodeGroupStatus{NodeStatuses: statuses},
		}
	}
	has := func(node string) apps.NodeStatus {
		return apps.NodeStatus{NodeName: node, SelectionStatus: apps.SelectionSucceeded}
	}
	byName := apps.NodeGroupSpec{Nodes: []string{"a"}}
	deleted := group("deleted", 1, byName, has("a"))
	deleted.DeletionTimestamp = new(metav1.NewTime(at(9)))
	got := assignment.Held([]*apps.NodeGroup{
		group("young", 4, byName, has("a")),
		group("holder", 3, byName, has("a"), apps.NodeStatus{NodeName: "b", SelectionStatus: apps.SelectionFailed}),
		group("stale", 1, apps.NodeGroupSpec{MatchLabels: map[string]string{"site": "south"}}, has("a"), has("gone")),
		group("loser", 2, byName, apps.NodeStatus{NodeName: "a", SelectionStatus: apps.SelectionFailed}),
		deleted,
	}, []assignment.Node{{Name: "a"}, {Name: "b"}})
	if diff := cmp.Diff(map[string]string{"a": "holder"}, got); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
}

// TestNodeOf: the zone that a group gave its member selects nothing, the Node's own does.
func TestNodeOf(t *testing.T) {
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{corev1.LabelTopologyZone: "z", "site": "north"}}}
	g := assignment.Group{Name: "g", MatchLabels: map[string]string{corev1.LabelTopologyZone: "z"}}
	if !g.Selects(assignment.NodeOf(o)) {
		t.Error("the Node's own zone does not select it")
	}
	o.Annotations = map[string]string{names.AnnotationGroupZone: "z"}
	if g.Selects(assignment.NodeOf(o)) {
		t.Error("the zone of the Node's group selects it")
	}
}
