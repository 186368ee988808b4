package frond_test

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/frond-edge/frond/api/names"
)

// manifestObjects returns the objects of all YAML files below deploy, by "file: kind name".
func manifestObjects(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	objects := map[string]*unstructured.Unstructured{}
	err := filepath.WalkDir("deploy", func(path string, d fs.DirEntry, err error) error {
		if path == "deploy/chart" {
			return fs.SkipDir // templates; its own test compares what they render with deploy/cloud
		}
		if err != nil || d.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader([]byte(read(t, path))), 4096)
		for {
			var document any
			if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			if fields, object := document.(map[string]any); object { // a part of Prometheus' configuration is a list
				o := &unstructured.Unstructured{Object: fields}
				objects[path+": "+o.GetKind()+" "+o.GetName()] = o
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// podSpecOf returns the pod spec of a workload, from the field where its kind has it.
func podSpecOf(t *testing.T, o *unstructured.Unstructured) (spec corev1.PodSpec, found bool) {
	t.Helper()
	for _, path := range [][]string{
		{"spec", "template", "spec"}, {"spec", "jobTemplate", "spec", "template", "spec"}, {"template", "spec"}, {"spec"},
	} {
		fields, found, _ := unstructured.NestedMap(o.Object, path...)
		if _, containers := fields["containers"]; !found || !containers {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &spec); err != nil {
			t.Fatal(err)
		}
		return spec, true
	}
	return spec, false
}

// excludesEdge reports whether no Node with the edge role can satisfy the required node affinity, whose terms are alternatives.
func excludesEdge(spec corev1.PodSpec) bool {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return false
	}
	terms := spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	return len(terms) > 0 && !slices.ContainsFunc(terms, func(term corev1.NodeSelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchExpressions, func(r corev1.NodeSelectorRequirement) bool {
			return r.Key == names.LabelEdge && r.Operator == corev1.NodeSelectorOpDoesNotExist
		})
	})
}

// toleratesEdge reports whether the pod tolerates the taint of gateways.
func toleratesEdge(spec corev1.PodSpec) bool {
	return slices.ContainsFunc(spec.Tolerations, func(t corev1.Toleration) bool {
		return (t.Key == "" || t.Key == names.LabelEdge) && (t.Effect == "" || t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute)
	})
}

// TestManifests_WorkloadsStayOffTheEdge checks every workload that the project installs, including later additions.
func TestManifests_WorkloadsStayOffTheEdge(t *testing.T) {
	workloads := 0
	for name, o := range manifestObjects(t) {
		spec, found := podSpecOf(t, o)
		if !found {
			continue
		}
		workloads++
		if !excludesEdge(spec) {
			t.Errorf("%s may be scheduled on a gateway: add the required node affinity %s DoesNotExist to each of its terms", name, names.LabelEdge)
		}
		if toleratesEdge(spec) || spec.NodeName != "" {
			t.Errorf("%s tolerates the taint %s, or names its node: it must do neither", name, names.LabelEdge)
		}
	}
	if workloads < 2 {
		t.Errorf("%d workloads were found below deploy, want the hub and cloudcore at least", workloads)
	}
}
