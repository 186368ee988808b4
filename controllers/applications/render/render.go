package render

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
)

const (
	// AnnotationMultiply of a manifest has it made for each target, as Deployments are.
	AnnotationMultiply = "frond.io/multiply"
	// annotationTopology and rangeGroup close the traffic of the Services of an application, as KubeEdge does.
	annotationTopology, rangeGroup = "apps.kubeedge.io/service-topology", "range-nodegroup"
)

// Target is a set of Nodes that objects are made for.
type Target struct {
	// Name ends the names of its objects.
	Name string
	// Group is the NodeGroup, "" for a target of labels.
	Group  string
	Labels map[string]string
	apps.Overriders
}

// Object is one object of an application.
type Object struct {
	// Ordinal is the position of the manifest, Target the name of the target, "" for an object that is made once.
	Ordinal int
	Target  string
	// ID is the object's identity, Version the version of its kind in the manifest.
	ID      ID
	Version string
	// Content is nil if the object cannot be made.
	Content *unstructured.Unstructured
}

// ID identifies an object. The version of its kind is not part of it: the same object has several.
type ID struct{ Group, Kind, Namespace, Name string }

// GroupKind returns the kind.
func (id ID) GroupKind() schema.GroupKind { return schema.GroupKind{Group: id.Group, Kind: id.Kind} }

func idOf(o *unstructured.Unstructured, name string) ID {
	kind := o.GroupVersionKind()
	return ID{kind.Group, kind.Kind, o.GetNamespace(), name}
}

func (id ID) String() string { return fmt.Sprintf("%s %s/%s", id.Kind, id.Namespace, id.Name) }

// Fault is what is wrong with the application.
type Fault struct {
	// Field is the path of the field in the application.
	Field string
	// Target is the target that it concerns, "" for all.
	Target string
	Reason string
}

func (f Fault) String() string {
	if f.Target != "" {
		return fmt.Sprintf("%s (target %s): %s", f.Field, f.Target, f.Reason)
	}
	return f.Field + ": " + f.Reason
}

// Result is what an application consists of.
type Result struct {
	Objects []Object
	Faults  []Fault
	// Complete is false if there is a manifest whose identity is not known: then nobody can tell which objects are no longer wanted.
	Complete bool
}

// Targets returns the targets of an application. Two entries for the same target would write the same objects: the second one is a fault.
func Targets(scope apps.WorkloadScope) (targets []Target, faults []Fault) {
	seen := map[string]bool{}
	add := func(field string, t Target) {
		if seen[t.Name] {
			faults = append(faults, Fault{Field: field, Target: t.Name, Reason: "names the same target as an entry before it, and is ignored"})
			return
		}
		seen[t.Name] = true
		targets = append(targets, t)
	}
	for i, g := range scope.TargetNodeGroups {
		field := fmt.Sprintf("spec.workloadScope.targetNodeGroups[%d]", i)
		if g.Name == "" {
			faults = append(faults, Fault{Field: field + ".name", Reason: "is empty"})
			continue
		}
		add(field, Target{Name: g.Name, Group: g.Name, Overriders: g.Overriders})
	}
	for i, l := range scope.TargetNodeLabels {
		field := fmt.Sprintf("spec.workloadScope.targetNodeLabels[%d].labelSelector", i)
		if len(l.LabelSelector.MatchLabels) == 0 {
			faults = append(faults, Fault{Field: field, Reason: "has no matchLabels, so it would select every Node"})
			continue
		}
		if len(l.LabelSelector.MatchExpressions) > 0 {
			faults = append(faults, Fault{Field: field + ".matchExpressions", Reason: "is not understood, and ignored as in KubeEdge"})
		}
		add(field, Target{Name: labelTargetName(l.LabelSelector.MatchLabels), Labels: l.LabelSelector.MatchLabels, Overriders: l.Overriders})
	}
	return targets, faults
}

// labelTargetName is KubeEdge's name of a target of labels.
func labelTargetName(labels map[string]string) string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		text.WriteString(key + labels[key])
	}
	digest := sha256.Sum256([]byte(text.String()))
	return fmt.Sprintf("ls-%x", digest[:4])
}

// Render returns the objects of an application. annotations returns those of a NodeGroup, for values in manifests; it may be nil.
func Render(app *apps.EdgeApplication, annotations func(group string) map[string]string) Result {
	r := renderer{app: app, annotations: annotations, seen: map[ID]string{}, containers: map[string]bool{}}
	r.result.Complete = identified(app.Spec.WorkloadScope)
	var targets []Target
	targets, r.result.Faults = Targets(app.Spec.WorkloadScope)
	templates := make([]*unstructured.Unstructured, len(app.Spec.WorkloadTemplate.Manifests))
	for i, manifest := range app.Spec.WorkloadTemplate.Manifests {
		templates[i] = r.parseManifest(i, manifest)
	}
	for i, template := range templates {
		if template != nil {
			r.renderManifest(i, template, targets)
		}
	}
	return r.result
}

// identified reports whether each target has a name. One without could have any of the objects that were made before.
func identified(scope apps.WorkloadScope) bool {
	return !slices.ContainsFunc(scope.TargetNodeGroups, func(t apps.TargetNodeGroup) bool { return t.Name == "" }) &&
		!slices.ContainsFunc(scope.TargetNodeLabels, func(t apps.TargetNodeLabel) bool { return len(t.LabelSelector.MatchLabels) == 0 })
}

type renderer struct {
	app         *apps.EdgeApplication
	annotations func(group string) map[string]string
	seen        map[ID]string // field of the manifest that made the object
	// containers are those of all manifests that are made for each target.
	containers map[string]bool
	version    string // of the manifest at hand
	result     Result
}

func (r *renderer) addFault(field, target string, err error) {
	r.result.Faults = append(r.result.Faults, Fault{Field: field, Target: target, Reason: err.Error()})
}

func manifestField(ordinal int) string {
	return fmt.Sprintf("spec.workloadTemplate.manifests[%d]", ordinal)
}

// parseManifest returns nil for what is no object.
func (r *renderer) parseManifest(ordinal int, manifest apps.Manifest) *unstructured.Unstructured {
	template, err := r.parse(manifest)
	if err != nil {
		r.result.Complete = false
		r.addFault(manifestField(ordinal), "", err)
		return nil
	}
	if path, found := podSpecPath(template); found && isMultiplied(template) {
		containers, _, _ := unstructured.NestedSlice(template.Object, append(path, "containers")...)
		for _, c := range containers {
			if container, ok := c.(map[string]any); ok {
				if name, ok := container["name"].(string); ok {
					r.containers[name] = true
				}
			}
		}
	}
	return template
}

func (r *renderer) renderManifest(ordinal int, template *unstructured.Unstructured, targets []Target) {
	field := manifestField(ordinal)
	r.version = template.GroupVersionKind().Version
	patches, err := takePatches(template)
	if err != nil {
		err = fmt.Errorf("metadata.annotations[%s]: %w", AnnotationPatches, err)
	}
	if !isMultiplied(template) {
		if len(patches) > 0 || err != nil {
			r.addFault(field, "", errors.Join(err, fmt.Errorf("the annotation %s is for manifests that are made for each target: add %s", AnnotationPatches, AnnotationMultiply)))
			r.add(field, Object{Ordinal: ordinal, ID: idOf(template, template.GetName())})
			return
		}
		r.renderOnce(ordinal, field, template)
		return
	}
	for _, target := range targets {
		r.renderFor(ordinal, field, template, target, patches, err)
	}
}

// parse reads a manifest. What a server sets is removed: manifests are often copied from clusters.
func (r *renderer) parse(manifest apps.Manifest) (*unstructured.Unstructured, error) {
	o := &unstructured.Unstructured{}
	if err := json.Unmarshal(manifest.Raw, &o.Object); err != nil {
		return nil, fmt.Errorf("is no object: %w", err)
	}
	switch {
	case o.GetAPIVersion() == "":
		return nil, errors.New("has no apiVersion")
	case o.GetKind() == "":
		return nil, errors.New("has no kind")
	case o.GetName() == "":
		return nil, errors.New("has no metadata.name")
	case o.GetNamespace() != "" && o.GetNamespace() != r.app.Namespace:
		return nil, fmt.Errorf("is in the namespace %s: an application only makes objects of its own namespace, %s", o.GetNamespace(), r.app.Namespace)
	}
	o.SetNamespace(r.app.Namespace)
	for _, path := range [][]string{
		{"status"},
		{"metadata", "creationTimestamp"},
		{"metadata", "uid"},
		{"metadata", "resourceVersion"},
		{"metadata", "generation"},
		{"metadata", "managedFields"},
		{"metadata", "ownerReferences"},
		{"spec", "template", "metadata", "creationTimestamp"},
	} {
		unstructured.RemoveNestedField(o.Object, path...)
	}
	return o, nil
}

func isMultiplied(o *unstructured.Unstructured) bool {
	if o.GroupVersionKind() == (schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}) {
		return true
	}
	return o.GetAnnotations()[AnnotationMultiply] == "true"
}

func (r *renderer) renderOnce(ordinal int, field string, template *unstructured.Unstructured) {
	if template.GroupVersionKind() == (schema.GroupVersionKind{Version: "v1", Kind: "Service"}) {
		annotations := template.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		if annotations[annotationTopology] == "" {
			annotations[annotationTopology] = rangeGroup
		}
		template.SetAnnotations(annotations)
	}
	r.add(field, Object{Ordinal: ordinal, Content: template})
}

// renderFor makes the object of a target. Its identity is known before anything can go wrong.
func (r *renderer) renderFor(ordinal int, field string, template *unstructured.Unstructured, target Target, patches []Patch, err error) {
	o := template.DeepCopy()
	o.SetName(template.GetName() + "-" + target.Name)
	made := Object{Ordinal: ordinal, Target: target.Name, Content: o}
	if err == nil {
		err = r.expandValues(o, target)
	}
	if err == nil {
		err = applyOverriders(o, target.Overriders, r.containers)
	}
	if err == nil {
		err = bindToTarget(o, target)
	}
	if err == nil {
		err = applyPatches(o, patches, target, r.expandIn)
	}
	if err == nil {
		if faults := validation.IsDNS1123Subdomain(o.GetName()); len(faults) > 0 {
			err = fmt.Errorf("the name %s is not possible: %s", o.GetName(), strings.Join(faults, "; "))
		}
	}
	if err != nil {
		r.addFault(field, target.Name, err)
		made.Content = nil
	}
	made.ID = idOf(o, template.GetName()+"-"+target.Name)
	r.add(field, made)
}

func (r *renderer) add(field string, made Object) {
	if made.Content != nil {
		made.ID = idOf(made.Content, made.Content.GetName())
	}
	made.Version = r.version
	if first, again := r.seen[made.ID]; again {
		r.addFault(field, made.Target, fmt.Errorf("makes %s, as %s does", made.ID, first))
		return
	}
	r.seen[made.ID] = field
	r.result.Objects = append(r.result.Objects, made)
}

// bindToTarget lets the pods of an object run on the Nodes of the target only, as KubeEdge does: the node selector is replaced for a group, and the
// required node affinity for labels. Objects without pods stay as they are.
func bindToTarget(o *unstructured.Unstructured, target Target) error {
	path, found := podSpecPath(o)
	if !found {
		return nil
	}
	if target.Group != "" {
		return unstructured.SetNestedStringMap(o.Object, map[string]string{names.LabelNodeGroup: target.Group}, append(path, "nodeSelector")...)
	}
	var expressions []any
	for _, key := range slices.Sorted(maps.Keys(target.Labels)) {
		expressions = append(expressions, map[string]any{"key": key, "operator": "In", "values": []any{target.Labels[key]}})
	}
	return unstructured.SetNestedMap(o.Object, map[string]any{
		"requiredDuringSchedulingIgnoredDuringExecution": map[string]any{"nodeSelectorTerms": []any{map[string]any{"matchExpressions": expressions}}},
	}, append(path, "affinity", "nodeAffinity")...)
}

// podSpecPath returns where an object has its pod spec.
func podSpecPath(o *unstructured.Unstructured) (path []string, found bool) {
	for _, path := range [][]string{{"spec", "template", "spec"}, {"spec", "jobTemplate", "spec", "template", "spec"}, {"spec"}} {
		if _, found, err := unstructured.NestedSlice(o.Object, append(slices.Clone(path), "containers")...); found && err == nil {
			return path, true
		}
	}
	return nil, false
}
