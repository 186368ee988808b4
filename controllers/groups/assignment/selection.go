package assignment

import (
	"slices"

	"github.com/frond-edge/frond/api/names"
)

// Selects reports whether a group asks for a Node, by name or by all of its labels.
func (g Group) Selects(node Node) bool {
	return slices.Contains(g.Nodes, node.Name) || g.matches(node)
}

// AsksFor reports whether a group asks for a Node, also by labels that must not decide about membership. For what a gateway gains
// nothing by, such as that its pods stay longer.
func (g Group) AsksFor(node Node) bool {
	return slices.Contains(g.Nodes, node.Name) || len(g.MatchLabels) > 0 && hasLabels(node, g.MatchLabels)
}

// matches reports whether the labels of the group ask for a Node.
func (g Group) matches(node Node) bool {
	if len(g.MatchLabels) == 0 || len(g.UntrustedLabels()) > 0 {
		return false
	}
	return hasLabels(node, g.MatchLabels)
}

func hasLabels(node Node, labels map[string]string) bool {
	for key, value := range labels {
		if has, ok := node.Labels[key]; !ok || has != value {
			return false
		}
	}
	return true
}

// UntrustedLabels returns the keys in the group's MatchLabels that must not decide about membership, in order: those that a gateway
// sets in its own Node, and the label of the membership itself. With one of them, the labels of the group select no Node.
func (g Group) UntrustedLabels() []string {
	var keys []string
	for key := range g.MatchLabels {
		if !Trusted(key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// Trusted reports whether a label of a Node may decide about its membership.
func Trusted(key string) bool {
	return key != names.LabelNodeGroup && !slices.Contains(names.KubeletLabels(), key)
}

// index finds the groups that ask for a Node without trying them all.
type index struct {
	groups []Group
	// byName and byLabel hold positions in groups, in order. Each group with trusted labels is below one of them.
	byName  map[string][]int
	byLabel map[label][]int
}

type label struct{ key, value string }

func newIndex(groups []Group) index {
	x := index{groups: groups, byName: map[string][]int{}, byLabel: map[label][]int{}}
	for i, g := range groups {
		for _, name := range g.Nodes {
			x.byName[name] = append(x.byName[name], i)
		}
		if len(g.MatchLabels) == 0 || len(g.UntrustedLabels()) > 0 {
			continue
		}
		var first label
		for key, value := range g.MatchLabels {
			if first.key == "" || key < first.key {
				first = label{key, value}
			}
		}
		x.byLabel[first] = append(x.byLabel[first], i)
	}
	return x
}

// groupsFor returns the positions of the groups that ask for a Node, in order, each once.
func (x index) groupsFor(node Node) []int {
	found := slices.Clone(x.byName[node.Name])
	for key, value := range node.Labels {
		for _, i := range x.byLabel[label{key, value}] {
			if x.groups[i].matches(node) {
				found = append(found, i)
			}
		}
	}
	slices.Sort(found)
	return slices.Compact(found)
}
