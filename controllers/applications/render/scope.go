package render

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
)

// Scope returns the targets of an application with the NodeGroups that it selects by their labels, in the order of their names, or why they are not known.
func Scope(app *apps.EdgeApplication, groups []*apps.NodeGroup) (apps.WorkloadScope, *Fault) {
	scope := *app.Spec.WorkloadScope.DeepCopy()
	text := app.Annotations[names.AnnotationTargetGroups]
	if text == "" {
		return scope, nil
	}
	selector, err := labels.Parse(text)
	if err != nil || selector.Empty() {
		return scope, &Fault{Field: "metadata.annotations[" + names.AnnotationTargetGroups + "]", Reason: fmt.Sprintf("%q is no label selector: %v", text, err)}
	}
	named := map[string]bool{}
	for _, t := range scope.TargetNodeGroups {
		named[t.Name] = true
	}
	groups = slices.SortedFunc(slices.Values(groups), func(a, b *apps.NodeGroup) int { return strings.Compare(a.Name, b.Name) })
	for _, g := range groups {
		if !named[g.Name] && g.DeletionTimestamp == nil && selector.Matches(labels.Set(g.Labels)) {
			scope.TargetNodeGroups = append(scope.TargetNodeGroups, apps.TargetNodeGroup{Name: g.Name})
		}
	}
	return scope, nil
}

// Annotations returns those of groups by their names, for Render.
func Annotations(groups []*apps.NodeGroup) func(group string) map[string]string {
	all := make(map[string]map[string]string, len(groups))
	for _, g := range groups {
		all[g.Name] = g.Annotations
	}
	return func(group string) map[string]string { return all[group] }
}
