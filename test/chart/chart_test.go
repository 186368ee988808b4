package chart_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/google/go-cmp/cmp"

	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

const (
	chartDir    = "../../deploy/chart/frond"
	manifestDir = "../../deploy/cloud"
	namespace   = "frond-system"
)

func TestMain(m *testing.M) { new(kubetest.Shared).Verify(m) }

// helm runs the built helm with files of its own.
type helm struct {
	program, kubectl, home, kubeconfig string
}

func newHelm(t *testing.T) helm {
	t.Helper()
	paths, err := toolchain.Find(t.Context(), toolchain.Request{Helm: true, Kube: true})
	if errors.Is(err, toolchain.ErrMissing) && !slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), "kube") {
		t.Skipf("%v (make tools builds it)", err)
	}
	kit.Must(t, err)
	return helm{program: paths.Helm, kubectl: filepath.Join(filepath.Dir(paths.Kube), "kubectl"), home: t.TempDir()}
}

// run returns what helm prints to stdout, and an error with what it prints to stderr.
func (h helm) run(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, faults bytes.Buffer
	cmd := exec.CommandContext(ctx, h.program, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+h.home, "HELM_CONFIG_HOME="+h.home, "HELM_DATA_HOME="+h.home, "KUBECONFIG="+h.kubeconfig)
	cmd.Stdout, cmd.Stderr = &out, &faults
	err = cmd.Run()
	return out.String(), faults.String(), err
}

func (h helm) mustRun(t *testing.T, args ...string) string {
	t.Helper()
	out, faults, err := h.run(t.Context(), args...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, faults)
	}
	return out
}

// template renders the chart without a cluster.
func (h helm) template(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	return decodeObjects(t, h.mustRun(t, append([]string{"template", "frond", chartDir, "--namespace", namespace}, args...)...))
}

func decodeObjects(t *testing.T, text string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(strings.NewReader(text), 4096)
	for {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// TestChart_RendersTheManifests compares the chart's default objects with those of deploy/cloud: whoever changes one must change the other.
func TestChart_RendersTheManifests(t *testing.T) {
	h := newHelm(t)
	out, err := exec.CommandContext(t.Context(), h.kubectl, "kustomize", manifestDir).Output()
	kit.Must(t, err)
	manifests := comparableObjects(decodeObjects(t, string(out)))
	rendered := comparableObjects(h.template(t, "--set", "cloudcore.image.tag=latest"))
	if len(manifests) != 7 {
		t.Errorf("deploy/cloud has %d objects, not 7", len(manifests))
	}
	if diff := cmp.Diff(manifests, rendered); diff != "" {
		t.Errorf("objects of deploy/cloud (-) and of the chart (+):\n%s", diff)
	}
}

// comparableObjects returns the objects by kind and name, without what is the tool's own and without values that equal Kubernetes' defaults.
func comparableObjects(objects []*unstructured.Unstructured) map[string]map[string]any {
	all := map[string]map[string]any{}
	for _, o := range objects {
		o = o.DeepCopy()
		unstructured.RemoveNestedField(o.Object, "metadata", "labels")
		unstructured.RemoveNestedField(o.Object, "spec", "template", "metadata", "labels", "app.kubernetes.io/part-of")
		unstructured.RemoveNestedField(o.Object, "spec", "externalTrafficPolicy")
		containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
		for _, c := range containers {
			delete(c.(map[string]any), "imagePullPolicy")
		}
		if containers != nil {
			_ = unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers")
		}
		all[o.GetKind()+" "+o.GetName()] = o.Object
	}
	return all
}

// TestChart_EachValueIsUsed sets each value of values.yaml to another one and expects other objects: a value that nothing uses misleads.
func TestChart_EachValueIsUsed(t *testing.T) {
	h := newHelm(t)
	var defaults map[string]any
	content, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	kit.Must(t, err)
	kit.Must(t, yaml.Unmarshal(content, &defaults))
	remaining := leafPaths("", defaults)
	for _, path := range slices.Sorted(maps.Keys(changedValues)) {
		change := changedValues[path]
		if remaining[path] == nil {
			t.Errorf("%s is not in values.yaml", path)
		}
		delete(remaining, path)
		before := h.mustRun(t, templateArgs(change.with, "")...)
		after := h.mustRun(t, templateArgs(change.with, path+"="+change.value)...)
		if before == after {
			t.Errorf("%s=%s changes nothing", path, change.value)
		}
		if !strings.Contains(after, change.shows) {
			t.Errorf("%s=%s: the objects lack %q", path, change.value, change.shows)
		}
	}
	for path := range remaining {
		t.Errorf("%s of values.yaml is not tried", path)
	}
}

func templateArgs(with []string, set string) []string {
	args := []string{"template", "frond", chartDir, "--namespace", namespace}
	for _, value := range with {
		args = append(args, "--set", value)
	}
	if set == "" {
		return args
	}
	path, value, _ := strings.Cut(set, "=")
	if strings.HasPrefix(value, "{") || strings.HasPrefix(value, "[") || value == "true" || value == "false" || strings.Trim(value, "0123456789") == "" {
		return append(args, "--set-json", path+"="+value)
	}
	return append(args, "--set-string", path+"="+value)
}

// leafPaths returns the paths of all values that are no maps, and of empty maps.
func leafPaths(prefix string, values map[string]any) map[string]any {
	paths := map[string]any{}
	for name, value := range values {
		fields, isMap := value.(map[string]any)
		path := strings.TrimPrefix(prefix+"."+name, ".")
		if isMap && len(fields) > 0 && !freeForm[path] {
			maps.Copy(paths, leafPaths(path, fields))
			continue
		}
		paths[path] = []any{value}
	}
	return paths
}

// TestChart_BadValuesAreRefused expects a clear error for each value that cannot work.
func TestChart_BadValuesAreRefused(t *testing.T) {
	h := newHelm(t)
	for _, test := range []struct{ set, want string }{
		{"hub.servers=2", "hub/servers"},
		{"hub.servers=4", "hub/servers"},
		{"hub.server=3", "server"},
		{"cloudcore.replicas=0", "cloudcore/replicas"},
		{"cloudcore.image.digest=sha256:abc", "cloudcore/image/digest"},
		{"cloudcore.goMemoryLimit=900Mi", "cloudcore/goMemoryLimit"},
		{"hub.storage.size=many", "hub/storage/size"},
		{"hub.storage.whenDeleted=Keep", "hub/storage/whenDeleted"},
		{"hub.service.type=ExternalName", "hub/service/type"},
		{"hub.service.ports.leaf=70000", "hub/service/ports/leaf"},
		{"hub.linkRate.enabled=true", "linkRate/image"},
		{"hub.linkRate.perSecond=0", "hub/linkRate/perSecond"},
		{"monitoring.podMonitor.interval=often", "monitoring/podMonitor/interval"},
		{"global.imageRegistry=registry.example.com/", "global/imageRegistry"},
		{"networkPolicy=true", "networkPolicy"},
		{"renewal.schedule=monthly", "renewal/schedule"},
	} {
		_, faults, err := h.run(t.Context(), "template", "frond", chartDir, "--namespace", namespace, "--set", test.set)
		if err == nil || !strings.Contains(faults, test.want) {
			t.Errorf("%s: got %v, %s; want a refusal that names %s", test.set, err, faults, test.want)
		}
	}
	_, faults, err := h.run(t.Context(), "template", "frond", chartDir, "--namespace", "elsewhere")
	if err == nil || !strings.Contains(faults, "--namespace frond-system") {
		t.Errorf("in another namespace: got %v, %s", err, faults)
	}
}

func TestChart_Lint(t *testing.T) {
	newHelm(t).mustRun(t, "lint", "--strict", "--namespace", namespace, chartDir)
}
