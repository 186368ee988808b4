// Package contained is the list of the objects that an application has made, in the annotation that KubeEdge uses for it, too. A crash between two
// steps must leave no object that nobody knows of, and delete none that is wanted.
package contained

import (
	"encoding/json"
	"fmt"
	"slices"

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
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
}

// List is a list of objects.
type List []Entry

// ID returns the identity of the object.
func (e Entry) ID() render.ID {
	return render.ID{Group: e.Group, Kind: e.Kind, Namespace: e.Namespace, Name: e.Name}
}

// maxBytes leaves room for other annotations: Kubernetes takes 256 KiB of all of them.
const maxBytes = 224 << 10

// Format returns the annotation. The error says that the list is too long for one.
func (l List) Format() (string, error) {
	text, err := json.Marshal(l)
	if err != nil {
		return "", fmt.Errorf("encode the list of objects: %w", err)
	}
	if len(text) > maxBytes {
		return "", fmt.Errorf("the application has %d objects, those that it no longer wants included, and their list needs %d bytes of the %d that fit into the annotation %s: divide it into several applications",
			len(l), len(text), maxBytes, Annotation)
	}
	return string(text), nil
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

// Of returns the list of objects.
func Of(objects []render.Object) List {
	list := make(List, 0, len(objects))
	for _, o := range objects {
		list = append(list, Entry{
			Ordinal: o.Ordinal, Group: o.ID.Group, Version: o.Version, Kind: o.ID.Kind, Namespace: o.ID.Namespace, Name: o.ID.Name,
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
	return append(slices.Clone(l), other.Without(l)...)
}

// Without returns the entries that another list does not have.
func (l List) Without(other List) List {
	known := make(map[render.ID]bool, len(other))
	for _, e := range other {
		known[e.ID()] = true
	}
	return slices.DeleteFunc(slices.Clone(l), func(e Entry) bool { return known[e.ID()] })
}

// Same reports whether two lists name the same objects in the same order.
func (l List) Same(other List) bool {
	return slices.EqualFunc(l, other, func(a, b Entry) bool { return a.ID() == b.ID() })
}
