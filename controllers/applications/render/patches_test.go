package render_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/controllers/applications/render"
)

// patched adds the annotation to a manifest.
func patched(t testing.TB, manifest, patches string) string {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(manifest))
	if err != nil {
		t.Fatal(err)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(asJSON, &fields); err != nil {
		t.Fatal(err)
	}
	metadata := fields["metadata"].(map[string]any) //nolint:forcetypeassert // of this file
	annotations, _ := metadata["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
	}
	annotations[render.AnnotationPatches] = patches
	metadata["annotations"] = annotations
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestRender_Patches(t *testing.T) {
	const meter = `{apiVersion: example.com/v1, kind: Meter, metadata: {name: m, annotations: {frond.io/multiply: "true"}}, spec: {serial: 9007199254740993, list: [1, 2], old: x}}`
	for _, c := range []struct {
		name, manifest, patches string
		north, south            map[string]string
	}{
		{
			"strategic merge of a kind of Kubernetes", deployment, `[{targets: [north], patch: {spec: {template: {spec: {containers: [{name: log, image: "${group.name}/logger"}]}}}}}]`,
			map[string]string{pod + ".containers.0.name": `"web"`, pod + ".containers.1.name": `"log"`, pod + ".containers.1.image": `"north/logger"`, "metadata.annotations": "null"},
			map[string]string{pod + ".containers.1.image": `"logger"`},
		},
		{
			"JSON merge of other kinds", meter, `[{patch: {spec: {list: [3], old: null, new: "${group.annotations.city}"}}}]`,
			map[string]string{"spec": `{"list":[3],"new":"Oslo","serial":9007199254740993}`, "metadata.annotations": `{"frond.io/multiply":"true"}`},
			map[string]string{"spec": `{"list":[3],"new":"Rome","serial":9007199254740993}`},
		},
		{
			"JSON patch", deployment, `[{targets: [south], json: [{op: test, path: /spec/replicas, value: 1}, {op: add, path: /spec/template/spec/containers/1/args, value: [-v]}]}]`,
			map[string]string{pod + ".containers.1.args": "null"},
			map[string]string{pod + ".containers.1.args": `["-v"]`, "spec.replicas": "1"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			result := render.Render(application(t, "targetNodeGroups: [{name: north}, {name: south}]", patched(t, c.manifest, c.patches)), func(group string) map[string]string {
				return map[string]string{"city": map[string]string{"north": "Oslo", "south": "Rome"}[group]}
			})
			if len(result.Faults) > 0 || len(result.Objects) != 2 {
				t.Fatalf("%v", result.Faults)
			}
			for i, want := range []map[string]string{c.north, c.south} {
				for path, want := range want {
					if got := at(t, result.Objects[i], path); got != want {
						t.Errorf("%s: %s is %s, want %s", result.Objects[i].ID, path, got, want)
					}
				}
			}
		})
	}
}

// TestRender_PatchFaults: a bad patch names itself, and concerns its own target.
func TestRender_PatchFaults(t *testing.T) {
	copies := strings.Repeat(`{op: copy, from: /spec, path: /spec/template/metadata/annotations}, `, 30)
	for patches, want := range map[string]string{
		`[{targets: [north], json: [{op: remove, path: /spec/nothing}]}]`:                                             "metadata.annotations[frond.io/patches][0]: ",
		`[{targets: [south], json: []}, {targets: [north], patch: {metadata: {name: other}}}]`:                        "[1]: apiVersion, kind, name and namespace cannot be patched",
		`[{targets: [north], patch: {kind: Secret}}]`:                                                                 "cannot be patched",
		`[{targets: [north], patch: {spec: {template: {spec: {nodeSelector: null}}}}}]`:                               "pods would run elsewhere",
		`[{targets: [north], patch: {spec: {template: {spec: {nodeSelector: {apps.kubeedge.io/belonging-to: x}}}}}}]`: "pods would run elsewhere",
		`[{targets: [north], patch: {spec: {replicas: "${group.colour}"}}}]`:                                          "neither ${group.name}",
		`[{targets: [north], json: [` + strings.TrimSuffix(copies, ", ") + `]}]`:                                      "copy",
		`[{targets: [north], json: [{op: replace, path: "", value: 3}]}]`:                                             "[0]: ",
	} {
		result := render.Render(application(t, "targetNodeGroups: [{name: north}, {name: south}]", patched(t, deployment, patches)), nil)
		if len(result.Faults) != 1 || result.Faults[0].Target != "north" || !strings.Contains(result.Faults[0].Reason, want) {
			t.Errorf("%.80s: faults %v, want one of north with %q", patches, result.Faults, want)
		}
		if len(result.Objects) != 2 || result.Objects[0].Content != nil || result.Objects[1].Content == nil || !result.Complete {
			t.Errorf("%.80s: %+v", patches, result.Objects)
		}
	}
	for patches, want := range map[string]string{
		`{`: "no list of patches", `{a: b}`: "no list of patches", `[{patchs: {}}]`: "patchs", `[{}]`: "item 0 needs either patch or json",
		`[{patch: {}, json: []}]`: "item 0 needs either", strings.Repeat(" ", 100_000): "100000 bytes",
	} {
		result := render.Render(application(t, "targetNodeGroups: [{name: north}, {name: south}]", patched(t, deployment, patches)), nil)
		if len(result.Faults) != 2 || !strings.Contains(result.Faults[0].Reason, want) || len(result.Objects) != 2 || result.Objects[0].Content != nil {
			t.Errorf("%.40s: %v, want %q for both targets", patches, result.Faults, want)
		}
	}
	once := render.Render(application(t, "targetNodeGroups: [{name: north}]", patched(t, `{apiVersion: v1, kind: ConfigMap, metadata: {name: site}}`, `[{patch: {}}]`)), nil)
	if len(once.Faults) != 1 || !strings.Contains(once.Faults[0].Reason, "frond.io/multiply") || len(once.Objects) != 1 || once.Objects[0].Content != nil || once.Objects[0].ID.Name != "site" {
		t.Errorf("%+v", once)
	}
	labels := render.Render(application(t, "targetNodeLabels: [{labelSelector: {matchLabels: {a: b}}}]", patched(t, deployment,
		`[{patch: {spec: {template: {spec: {affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: null}}}}}}}]`)), nil)
	if len(labels.Faults) != 1 || !strings.Contains(labels.Faults[0].Reason, "pods would run elsewhere") {
		t.Errorf("%v", labels.Faults)
	}
}

// FuzzPatches: no patch makes it panic, grow without a limit, or make an object of another identity.
func FuzzPatches(f *testing.F) {
	f.Add(`[{targets: [north], patch: {spec: {replicas: 2}}}]`)
	f.Add(`[{json: [{op: copy, from: /spec, path: /spec/template/metadata/labels}]}]`)
	f.Add(`[{patch: {spec: {template: {spec: {containers: [{$patch: replace}, {name: x}]}}}}}]`)
	f.Fuzz(func(t *testing.T, patches string) {
		result := render.Render(application(t, "targetNodeGroups: [{name: north}]", patched(t, deployment, patches)), nil)
		for _, o := range result.Objects {
			if o.ID.Name != "web-north" || o.Content != nil && (o.Content.GetName() != "web-north" || o.Content.GetNamespace() != "shop") {
				t.Errorf("%+v", o)
			}
			if o.Content == nil {
				continue
			}
			if text, err := o.Content.MarshalJSON(); err != nil || len(text) > 4<<20 {
				t.Errorf("%d bytes, %v", len(text), err)
			}
		}
	})
}
