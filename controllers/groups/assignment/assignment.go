// Package assignment decides which Node is a member of which NodeGroup.
//
// A Node is in one group at most. Of several groups that ask for it, the one that holds it keeps it; else the oldest gets it, and among
// groups of the same second the first by name. A group that got nothing asks again at each evaluation, so it gets the Node as soon as the
// holder lets go. Membership follows from the specs of groups alone: a Node's label apps.kubeedge.io/belonging-to counts for nothing, and so
// do the labels that a gateway sets in its own Node. All functions are pure, and equal input gives equal output.
package assignment

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Group is the part of a NodeGroup that decides about its members.
type Group struct {
	Name    string
	Created time.Time
	// Nodes are the names of the Nodes that it asks for.
	Nodes []string
	// MatchLabels ask for the Nodes that have all of them; none ask for none.
	MatchLabels map[string]string
}

// Node is the part of a Node that decides about its group.
type Node struct {
	Name   string
	Labels map[string]string
}

// Conflict is a Node that a group asked for and did not get.
type Conflict struct {
	// Node is the Node's name.
	Node string
	// Holder is the group that the Node is a member of.
	Holder string
}

// Assignment is who is in which group. It does not change, and may be used concurrently. The zero Assignment has no members.
type Assignment struct {
	byNode    map[string]string
	byGroup   map[string][]string
	conflicts map[string][]Conflict
	missing   map[string][]string
	// exists are all Nodes that were evaluated.
	exists map[string]bool
}

// Assign computes the members of all groups. held names the group that holds each Node now: it keeps the Node for as long as it asks for it.
// Names of groups must be unique, and so must those of nodes. The arguments are not changed, and their order does not matter.
func Assign(groups []Group, nodes []Node, held map[string]string) Assignment {
	groups = slices.Clone(groups)
	slices.SortFunc(groups, func(a, b Group) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name)) })
	selectors := newIndex(groups)
	a := Assignment{byNode: map[string]string{}, byGroup: map[string][]string{}, conflicts: map[string][]Conflict{}, missing: map[string][]string{}}
	exists := make(map[string]bool, len(nodes))
	a.exists = exists
	for _, node := range nodes {
		exists[node.Name] = true
		candidates := selectors.groupsFor(node)
		if len(candidates) == 0 {
			continue
		}
		holder := groups[candidates[0]].Name
		for _, i := range candidates {
			if groups[i].Name == held[node.Name] {
				holder = groups[i].Name
			}
		}
		a.byNode[node.Name] = holder
		a.byGroup[holder] = append(a.byGroup[holder], node.Name)
		for _, i := range candidates {
			if name := groups[i].Name; name != holder {
				a.conflicts[name] = append(a.conflicts[name], Conflict{Node: node.Name, Holder: holder})
			}
		}
	}
	for _, g := range groups {
		for _, name := range g.Nodes {
			if !exists[name] && !slices.Contains(a.missing[g.Name], name) {
				a.missing[g.Name] = append(a.missing[g.Name], name)
			}
		}
	}
	a.sortAll()
	return a
}

func (a Assignment) sortAll() {
	for name := range a.byGroup {
		slices.Sort(a.byGroup[name])
	}
	for name := range a.missing {
		slices.Sort(a.missing[name])
	}
	for name := range a.conflicts {
		slices.SortFunc(a.conflicts[name], func(x, y Conflict) int { return cmp.Compare(x.Node, y.Node) })
	}
}

// GroupOf returns the group that a Node is a member of, and whether it is in one.
func (a Assignment) GroupOf(node string) (group string, member bool) {
	group, member = a.byNode[node]
	return group, member
}

// Knows reports whether a Node was evaluated: one that was not may be in any group.
func (a Assignment) Knows(node string) bool { return a.exists[node] }

// Members returns the Nodes that are in a group, by name. The caller must not change the slice.
func (a Assignment) Members(group string) []string { return a.byGroup[group] }

// Conflicts returns the Nodes that a group asked for and another one has, by name. The caller must not change the slice.
func (a Assignment) Conflicts(group string) []Conflict { return a.conflicts[group] }

// Missing returns the Nodes that a group names and that do not exist, by name. The caller must not change the slice.
func (a Assignment) Missing(group string) []string { return a.missing[group] }

// Equal reports whether two assignments say the same.
func (a Assignment) Equal(b Assignment) bool {
	return maps.Equal(a.byNode, b.byNode) && maps.EqualFunc(a.conflicts, b.conflicts, slices.Equal[[]Conflict]) &&
		maps.EqualFunc(a.missing, b.missing, slices.Equal[[]string]) && maps.Equal(a.exists, b.exists)
}
