package render

import (
	"errors"
	"fmt"
	"slices"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/names"
)

// AnnotationPatches of a manifest that is made for each target is a list of Patches, JSON or YAML. It is not part of the object.
const AnnotationPatches = "frond.io/patches"

// maxPatchBytes bounds the annotation, and what the copies of a JSON patch may add to an object.
const maxPatchBytes = 64 << 10

// Patch changes the object of some targets, after the overriders. It has either Patch or JSON.
type Patch struct {
	// Targets are the names of the targets; without any it is for all.
	Targets []string `json:"targets,omitempty"`
	// Patch is merged into the object: strategically, as kubectl patch does, for Kubernetes' own kinds, and by RFC 7386 for others.
	Patch map[string]any `json:"patch,omitempty"`
	// JSON is a JSON patch, RFC 6902.
	JSON []map[string]any `json:"json,omitempty"`
}

// takePatches removes the annotation from a manifest and returns its patches.
func takePatches(template *unstructured.Unstructured) ([]Patch, error) {
	annotations := template.GetAnnotations()
	text, set := annotations[AnnotationPatches]
	if !set {
		return nil, nil
	}
	unstructured.RemoveNestedField(template.Object, "metadata", "annotations", AnnotationPatches)
	if len(annotations) == 1 {
		unstructured.RemoveNestedField(template.Object, "metadata", "annotations")
	}
	if len(text) > maxPatchBytes {
		return nil, fmt.Errorf("has %d bytes, more than %d", len(text), maxPatchBytes)
	}
	var patches []Patch
	if err := yaml.UnmarshalStrict([]byte(text), &patches); err != nil {
		return nil, fmt.Errorf("is no list of patches, JSON or YAML: %w", err)
	}
	asJSON, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		return nil, err
	}
	patches = nil
	if err := json.Unmarshal(asJSON, &patches); err != nil { // again, with integers as such
		return nil, err
	}
	for i, p := range patches {
		if (p.Patch == nil) == (p.JSON == nil) {
			return nil, fmt.Errorf("item %d needs either patch or json", i)
		}
	}
	return patches, nil
}

// applyPatches changes an object for a target; expandIn replaces the values in a patch. What it is and where its pods run stays as it was: the object would be another target's else.
func applyPatches(o *unstructured.Unstructured, patches []Patch, target Target, expandIn func(*unstructured.Unstructured, Target) error) error {
	for i, p := range patches {
		if len(p.Targets) > 0 && !slices.Contains(p.Targets, target.Name) {
			continue
		}
		changed, err := applyPatch(o, p, target, expandIn)
		if err == nil {
			err = checkIdentity(o, changed, target)
		}
		if err != nil {
			return fmt.Errorf("metadata.annotations[%s][%d]: %w", AnnotationPatches, i, err)
		}
		o.Object = changed.Object
	}
	return nil
}

func applyPatch(o *unstructured.Unstructured, p Patch, target Target, expandIn func(*unstructured.Unstructured, Target) error) (*unstructured.Unstructured, error) {
	if p.JSON != nil {
		return applyJSONPatch(o, p.JSON)
	}
	patch := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(p.Patch)}
	if err := expandIn(patch, target); err != nil {
		return nil, err
	}
	typed, err := scheme.Scheme.New(o.GroupVersionKind())
	if runtime.IsNotRegisteredError(err) {
		return applyMergePatch(o, patch.Object)
	}
	if err != nil {
		return nil, err
	}
	meta, err := strategicpatch.NewPatchMetaFromStruct(typed)
	if err != nil {
		return nil, err
	}
	fields, err := strategicpatch.StrategicMergeMapPatchUsingLookupPatchMeta(o.DeepCopy().Object, patch.Object, meta)
	if err != nil {
		return nil, err
	}
	return &unstructured.Unstructured{Object: fields}, nil
}

func applyJSONPatch(o *unstructured.Unstructured, operations []map[string]any) (*unstructured.Unstructured, error) {
	text, err := json.Marshal(operations)
	if err != nil {
		return nil, err
	}
	patch, err := jsonpatch.DecodePatch(text)
	if err != nil {
		return nil, err
	}
	options := jsonpatch.NewApplyOptions()
	options.AccumulatedCopySizeLimit = maxPatchBytes // each copy may double the object
	return viaJSON(o, func(text []byte) ([]byte, error) { return patch.ApplyWithOptions(text, options) })
}

func applyMergePatch(o *unstructured.Unstructured, fields map[string]any) (*unstructured.Unstructured, error) {
	patch, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	return viaJSON(o, func(text []byte) ([]byte, error) { return jsonpatch.MergePatch(text, patch) })
}

func viaJSON(o *unstructured.Unstructured, change func([]byte) ([]byte, error)) (*unstructured.Unstructured, error) {
	text, err := json.Marshal(o.Object)
	if err != nil {
		return nil, err
	}
	if text, err = change(text); err != nil {
		return nil, err
	}
	changed := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &changed.Object); err != nil {
		return nil, fmt.Errorf("the result is no object: %w", err)
	}
	return changed, nil
}

func checkIdentity(before, after *unstructured.Unstructured, target Target) error {
	path, hasPods := podSpecPath(before)
	if target.Group != "" && hasPods {
		selector, _, err := unstructured.NestedStringMap(after.Object, append(path, "nodeSelector")...)
		if err != nil || selector[names.LabelNodeGroup] != target.Group {
			return fmt.Errorf("the node selector %s is not %s any more: pods would run elsewhere", names.LabelNodeGroup, target.Group)
		}
	}
	if target.Group == "" && hasPods {
		const affinity, required = "affinity", "requiredDuringSchedulingIgnoredDuringExecution"
		was, _, _ := unstructured.NestedFieldNoCopy(before.Object, append(path, affinity, "nodeAffinity", required)...)
		is, _, _ := unstructured.NestedFieldNoCopy(after.Object, append(path, affinity, "nodeAffinity", required)...)
		if !equalJSON(was, is) {
			return errors.New("the required node affinity is another one: pods would run elsewhere")
		}
	}
	if before.GetAPIVersion() != after.GetAPIVersion() || before.GetKind() != after.GetKind() || before.GetName() != after.GetName() || before.GetNamespace() != after.GetNamespace() {
		return errors.New("apiVersion, kind, name and namespace cannot be patched")
	}
	return nil
}

func equalJSON(a, b any) bool {
	first, err := json.Marshal(a)
	second, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(first) == string(second)
}
