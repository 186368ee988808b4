package assignment

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
)

// GroupOf returns the part of a NodeGroup that decides. A group that is being deleted asks for no Node.
func GroupOf(o *apps.NodeGroup) Group {
	g := Group{Name: o.Name, Created: o.CreationTimestamp.Time}
	if o.DeletionTimestamp == nil {
		g.Nodes, g.MatchLabels = o.Spec.Nodes, o.Spec.MatchLabels
	}
	return g
}

// NodeOf returns the part of a Node that decides: its labels without those that its group gave it.
func NodeOf(o *corev1.Node) Node {
	n := Node{Name: o.Name, Labels: o.Labels}
	if _, ours := o.Annotations[names.AnnotationGroupZone]; !ours {
		return n
	}
	n.Labels = make(map[string]string, len(o.Labels))
	for key, value := range o.Labels {
		if key != corev1.LabelTopologyZone {
			n.Labels[key] = value
		}
	}
	return n
}

// Held returns the group that holds each Node, as the statuses of the groups say. Where two say so, one of them is not up to date: a group
// that no longer asks for the Node does not count, and of several that do, the oldest counts, then the first by name.
func Held(groups []*apps.NodeGroup, nodes []Node) map[string]string {
	byName := make(map[string]Node, len(nodes))
	for _, n := range nodes {
		byName[n.Name] = n
	}
	groups = slices.Clone(groups)
	slices.SortFunc(groups, func(a, b *apps.NodeGroup) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	held := map[string]string{}
	for _, o := range groups {
		g := GroupOf(o)
		for _, s := range o.Status.NodeStatuses {
			node, exists := byName[s.NodeName]
			if _, taken := held[s.NodeName]; exists && !taken && s.SelectionStatus == apps.SelectionSucceeded && g.Selects(node) {
				held[s.NodeName] = g.Name
			}
		}
	}
	return held
}
