// Package contained is the list of the objects that an application has made, in the annotation that KubeEdge uses for it, too. A crash between two
// steps must leave no object that nobody knows of, and delete none that is wanted.
package contained

import (
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/frond-edge/frond/controllers/applications/render"
)

// Annotation of an application holds the list.
const Annotation = "apps.kubeedge.io/last-contained-resources"

// Entry is one object. Its ordinal and version are not compared: manifests may be reordered, and an object has several versions.
type Entry struct {
	Ordinal   int    `json:"ordinal"`
	Group     string `json:"group,omitempty"`
	Version   string `json:"version,omitempty"`
	Kind      string `json:"kind,omitempty"`
	Resource  string `json:"resource,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// List is a list of objects.
type List []Entry

// ID returns the identity of the object.
func (e Entry) ID() render.ID {
	return render.ID{Group: e.Group, Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}
}

// Parse reads the annotation; an empty one is an empty list.
func Parse(text string) (List, error) {
	if text == "" {
		return nil, nil
	}
	var list List
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("understand the annotation %s: %w", Annotation, err)
	}
	return list, nil
}

// Of returns the list of objects. resource returns the resource of a kind, or "".
func Of(objects []render.Object, resource func(schema.GroupKind) string) List {
	list := make(List, 0, len(objects))
	for _, o := range objects {
		list = append(list, Entry{
			Ordinal: o.Ordinal, Group: o.ID.Group, Version: o.Version, Kind: o.ID.Kind, Resource: resource(o.ID.GroupKind()), Namespace: o.ID.Namespace, Name: o.ID.Name,
		})
	}
	return list
}

// Has reports whether the list names an object.
func (l List) Has(id render.ID) bool {
	return slices.ContainsFunc(l, func(e Entry) bool { return e.ID() == id })
}

// Union returns the list with the entries of another one that it does not have.
func (l List) Union(other List) List {
	all := slices.Clone(l)
	for _, e := range other {
		if !all.Has(e.ID()) {
			all = append(all, e)
		}
	}
	return all
}

// Without returns the entries that another list does not have.
func (l List) Without(other List) List {
	return slices.DeleteFunc(slices.Clone(l), func(e Entry) bool { return other.Has(e.ID()) })
}

// Same reports whether two lists name the same objects in the same order.
func (l List) Same(other List) bool {
	return slices.EqualFunc(l, other, func(a, b Entry) bool { return a.ID() == b.ID() })
}
