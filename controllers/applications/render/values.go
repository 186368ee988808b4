package render

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// expandValues replaces ${group.name} and ${group.annotations.KEY} in all texts of an object. Other texts stay, also ${other}, which shells and
// Kubernetes understand.
func (r *renderer) expandValues(o *unstructured.Unstructured, target Target) error {
	if target.Group == "" {
		return nil
	}
	name := o.GetName()
	err := r.expandIn(o, target)
	o.SetName(name)
	return err
}

// expandIn replaces the values in a part of an object.
func (r *renderer) expandIn(part *unstructured.Unstructured, target Target) error {
	if target.Group == "" {
		return nil
	}
	var annotations map[string]string
	if r.annotations != nil {
		annotations = r.annotations(target.Group)
	}
	e := expander{group: target.Group, annotations: annotations, left: maxValueBytes}
	expanded, err := e.expand(part.Object)
	if err != nil {
		return err
	}
	fields, ok := expanded.(map[string]any)
	if !ok {
		return errors.New("is no object")
	}
	part.Object = fields
	return nil
}

// maxValueBytes bounds what values add to an object. Kubernetes takes no object of more than 1.5 MiB.
const maxValueBytes = 1 << 20

// expander replaces the values of one group in one object.
type expander struct {
	group       string
	annotations map[string]string
	left        int
}

func (e *expander) expand(value any) (any, error) {
	var err error
	switch v := value.(type) {
	case string:
		return e.expandText(v)
	case []any:
		for i := range v {
			if v[i], err = e.expand(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for key := range v {
			if v[key], err = e.expand(v[key]); err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	return value, nil
}

func (e *expander) expandText(text string) (string, error) {
	const prefix, annotationPrefix = "${group.", "annotations."
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, prefix)
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, after, closed := strings.Cut(rest, "}")
		key, annotation := strings.CutPrefix(name, annotationPrefix)
		value, known := e.annotations[key]
		if name == "name" {
			value = e.group
		}
		e.left -= len(value)
		switch {
		case !closed:
			return "", fmt.Errorf("%q has no }", prefix+shorten(rest))
		case e.left < 0:
			return "", fmt.Errorf("the object gets longer than its manifest by more than %d bytes", maxValueBytes)
		case name == "name" || annotation && known:
			out.WriteString(value)
		case annotation:
			return "", fmt.Errorf("the NodeGroup %s has no annotation %s", e.group, key)
		default:
			return "", fmt.Errorf("${group.%s} is neither ${group.name} nor ${group.annotations.KEY}", name)
		}
		text = after
	}
}

// shorten returns the beginning of a text, for a message.
func shorten(text string) string {
	const most = 40
	if len(text) <= most {
		return text
	}
	return text[:most] + "…"
}
