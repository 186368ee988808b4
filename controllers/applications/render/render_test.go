package render_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers/applications/render"
)

const deployment = `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, labels: {app: web}, creationTimestamp: null}, spec: {replicas: 1,
  selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {nodeSelector: {disk: ssd}, initContainers: [{name: prepare, image: busybox}],
  containers: [{name: web, image: "registry.example.com:5000/shop/web:v1", command: [serve], env: [{name: A, value: "1"}, {name: B, value: "2"}]},
  {name: log, image: logger}]}}}, status: {}}`

// application reads an application of the namespace shop from YAML: its scope and its manifests.
func application(t testing.TB, scope string, manifests ...string) *apps.EdgeApplication {
	t.Helper()
	app := &apps.EdgeApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "app"}}
	if err := yaml.UnmarshalStrict([]byte(scope), &app.Spec.WorkloadScope); err != nil {
		t.Fatal(err)
	}
	for _, manifest := range manifests {
		raw, err := yaml.YAMLToJSON([]byte(manifest))
		if err != nil {
			t.Fatal(err)
		}
		var m apps.Manifest
		m.Raw = raw
		app.Spec.WorkloadTemplate.Manifests = append(app.Spec.WorkloadTemplate.Manifests, m)
	}
	return app
}

// at returns the JSON of a field of an object; a path has dots, and numbers for items.
func at(t *testing.T, o render.Object, path string) string {
	t.Helper()
	if o.Content == nil {
		return "not made"
	}
	var value any = o.Content.Object
	for token := range strings.SplitSeq(path, ".") {
		switch v := value.(type) {
		case map[string]any:
			value = v[token]
		case []any:
			var i int
			if _, err := fmt.Sscan(token, &i); err != nil || i >= len(v) {
				return "nothing"
			}
			value = v[i]
		default:
			return "nothing"
		}
	}
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const pod = "spec.template.spec"

func TestRender_Overriders(t *testing.T) {
	for overriders, want := range map[string]map[string]string{
		`{}`: {
			"spec.replicas": "1", "metadata.name": `"web-north"`, "metadata.namespace": `"shop"`, "metadata.labels": `{"app":"web"}`,
			pod + ".nodeSelector": `{"apps.kubeedge.io/belonging-to":"north"}`, "status": "null",
		},
		`{replicas: 0}`: {"spec.replicas": "0"},
		`{imageOverriders: [{component: Tag, operator: replace, value: v2}]}`: {
			pod + ".containers.0.image": `"registry.example.com:5000/shop/web:v2"`, pod + ".containers.1.image": `"logger:v2"`, pod + ".initContainers.0.image": `"busybox"`,
		},
		`{imageOverriders: [{component: Tag, operator: add, value: -arm}]}`:                                                                  {pod + ".containers.0.image": `"registry.example.com:5000/shop/web:v1-arm"`},
		`{imageOverriders: [{component: Tag, operator: remove}]}`:                                                                            {pod + ".containers.0.image": `"registry.example.com:5000/shop/web"`},
		`{imageOverriders: [{component: Tag, operator: replace, value: "@sha256:ab"}]}`:                                                      {pod + ".containers.1.image": `"logger@sha256:ab"`},
		`{imageOverriders: [{component: Registry, operator: replace, value: mirror}]}`:                                                       {pod + ".containers.0.image": `"mirror/shop/web:v1"`, pod + ".containers.1.image": `"mirror/logger"`},
		`{imageOverriders: [{component: Registry, operator: remove}]}`:                                                                       {pod + ".containers.0.image": `"shop/web:v1"`},
		`{imageOverriders: [{component: Repository, operator: add, value: -added}]}`:                                                         {pod + ".containers.0.image": `"registry.example.com:5000/shop/web-added:v1"`},
		`{imageOverriders: [{component: Tag, operator: replace, value: v9, predicate: {path: /spec/template/spec/initContainers/0/image}}]}`: {pod + ".initContainers.0.image": `"busybox:v9"`, pod + ".containers.1.image": `"logger"`},
		`{commandOverriders: [{containerName: web, operator: add, value: [now, now]}]}`:                                                      {pod + ".containers.0.command": `["serve","now","now"]`},
		`{commandOverriders: [{containerName: web, operator: remove, value: [serve]}]}`:                                                      {pod + ".containers.0.command": "null"},
		`{argsOverriders: [{containerName: log, operator: add, value: [-v]}]}`:                                                               {pod + ".containers.1.args": `["-v"]`},
		`{argsOverriders: [{containerName: log, operator: remove, value: [-v]}]}`:                                                            {pod + ".containers.1.args": "null"},
		`{envOverriders: [{containerName: web, operator: replace, value: [{name: C, value: "3"}, {name: A, value: "9"}]}]}`: {
			pod + ".containers.0.env": `[{"name":"A","value":"9"},{"name":"B","value":"2"},{"name":"C","value":"3"}]`,
		},
		`{envOverriders: [{containerName: web, operator: remove, value: [{name: A}, {name: B}]}]}`: {pod + ".containers.0.env": "null"},
		`{envOverriders: [{containerName: log, operator: add, value: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}]}`: {
			pod + ".containers.1.env": `[{"name":"NODE","valueFrom":{"fieldRef":{"fieldPath":"spec.nodeName"}}}]`,
		},
		`{resourcesOverriders: [{containerName: web, value: {limits: {memory: 1Gi, nvidia.com/gpu: "1"}}}]}`: {
			pod + ".containers.0.resources": `{"limits":{"memory":"1Gi","nvidia.com/gpu":"1"}}`,
		},
	} {
		t.Run(overriders, func(t *testing.T) {
			result := render.Render(application(t, "targetNodeGroups: [{name: north, overriders: "+overriders+"}]", deployment), nil)
			if len(result.Faults) > 0 || len(result.Objects) != 1 || !result.Complete {
				t.Fatalf("%+v", result)
			}
			for path, want := range want {
				if got := at(t, result.Objects[0], path); got != want {
					t.Errorf("%s is %s, want %s", path, got, want)
				}
			}
		})
	}
}

// TestRender_FaultsAreTheirOwnTargets: a fault names field, target and reason; other targets are made, and the identity of the object that is not is known.
func TestRender_FaultsAreTheirOwnTargets(t *testing.T) {
	for overriders, want := range map[string]string{
		`{envOverriders: [{containerName: nobody, operator: add}]}`:                                                                 `envOverriders[0]: containerName: there is no container "nobody"`,
		`{imageOverriders: [{component: Tag, operator: add, value: x, predicate: {path: /spec/nothing}}]}`:                          "imageOverriders[0]: predicate.path: there is nothing at /spec/nothing",
		`{imageOverriders: [{component: Tag, operator: add, value: x, predicate: {path: /spec/template/spec/containers/7/image}}]}`: "there is nothing at",
		`{imageOverriders: [{component: Tag, operator: add, value: x, predicate: {path: /spec/replicas}}]}`:                         "is no text",
		`{imageOverriders: [{component: Repository, operator: remove}]}`:                                                            "no repository",
		`{imageOverriders: [{component: Colour, operator: add}]}`:                                                                   `component "Colour"`,
		`{commandOverriders: [{containerName: web, operator: replace}]}`:                                                            `operator "replace"`,
		`{replicas: -1}`: "overriders.replicas is -1",
	} {
		t.Run(overriders, func(t *testing.T) {
			result := render.Render(application(t, "targetNodeGroups: [{name: south, overriders: "+overriders+"}, {name: north}]", deployment), nil)
			if len(result.Faults) != 1 || result.Faults[0].Target != "south" || !strings.Contains(result.Faults[0].String(), want) ||
				result.Faults[0].Field != "spec.workloadTemplate.manifests[0]" {
				t.Errorf("faults %v, want one of south with %q", result.Faults, want)
			}
			if len(result.Objects) != 2 || result.Objects[0].Content != nil || result.Objects[0].ID.Name != "web-south" || result.Objects[1].Content == nil || !result.Complete {
				t.Errorf("objects %+v", result.Objects)
			}
		})
	}
}

func TestRender_Scope(t *testing.T) {
	app := application(t, `{targetNodeGroups: [{name: north}, {name: north}, {name: ""}], targetNodeLabels: [{labelSelector: {matchLabels: {b: "2", a: "1"}}}, {labelSelector: {}}]}`,
		deployment, `{apiVersion: v1, kind: Service, metadata: {name: web}}`, `{apiVersion: v1, kind: ConfigMap, metadata: {name: site, namespace: shop}}`)
	result := render.Render(app, nil)
	var ids []string
	for _, o := range result.Objects {
		ids = append(ids, o.ID.String())
	}
	if diff := cmp.Diff([]string{"Deployment shop/web-north", "Deployment shop/web-ls-" + labelDigest, "Service shop/web", "ConfigMap shop/site"}, ids); diff != "" {
		t.Error(diff)
	}
	if got := at(t, result.Objects[1], pod+".affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"); got !=
		`[{"matchExpressions":[{"key":"a","operator":"In","values":["1"]},{"key":"b","operator":"In","values":["2"]}]}]` {
		t.Errorf("affinity %s", got)
	}
	if got := at(t, result.Objects[1], pod+".nodeSelector"); got != `{"disk":"ssd"}` {
		t.Errorf("node selector %s", got)
	}
	if got := at(t, result.Objects[2], "metadata.annotations"); got != `{"apps.kubeedge.io/service-topology":"range-nodegroup"}` {
		t.Errorf("annotations %s", got)
	}
	if len(result.Faults) != 3 {
		t.Errorf("faults %v", result.Faults)
	}
}

// labelDigest is of "a1b2".
const labelDigest = "85337816"

func TestRender_Values(t *testing.T) {
	config := `{apiVersion: v1, kind: ConfigMap, metadata: {name: site, annotations: {frond.io/multiply: "true"}}, data: {name: "site ${group.name}, ${group.annotations.city}!", keep: "$(A) ${B}"}}`
	app := application(t, "targetNodeGroups: [{name: north}, {name: south}]", config)
	result := render.Render(app, func(group string) map[string]string {
		return map[string]map[string]string{"north": {"city": "Oslo"}}[group]
	})
	if got := at(t, result.Objects[0], "data"); got != `{"keep":"$(A) ${B}","name":"site north, Oslo!"}` {
		t.Errorf("data %s", got)
	}
	if len(result.Faults) != 1 || !strings.Contains(result.Faults[0].Reason, "the NodeGroup south has no annotation city") {
		t.Errorf("faults %v", result.Faults)
	}
	for text, want := range map[string]string{"${group.zone}": "neither", "${group.name": "has no }"} {
		bad := render.Render(application(t, "targetNodeGroups: [{name: north}]", strings.Replace(config, "$(A) ${B}", text, 1)), nil)
		if len(bad.Faults) != 1 || !strings.Contains(bad.Faults[0].Reason, want) && !strings.Contains(bad.Faults[0].Reason, "no annotation") {
			t.Errorf("%s: %v", text, bad.Faults)
		}
	}
}

func TestRender_UnidentifiedManifestsMakeItIncomplete(t *testing.T) {
	for manifest, want := range map[string]string{
		`[1]`: "is no object", `{}`: "no apiVersion", `{apiVersion: v1}`: "no kind", `{apiVersion: v1, kind: ConfigMap}`: "no metadata.name",
		`{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: other}}`: "only makes objects of its own namespace",
	} {
		result := render.Render(application(t, "targetNodeGroups: [{name: north}]", manifest, deployment), nil)
		if result.Complete || len(result.Objects) != 1 || len(result.Faults) != 1 || !strings.Contains(result.Faults[0].Reason, want) {
			t.Errorf("%s: %+v", manifest, result)
		}
	}
	twice := render.Render(application(t, "targetNodeGroups: [{name: north}]", deployment, deployment), nil)
	if len(twice.Objects) != 1 || len(twice.Faults) != 1 || !strings.Contains(twice.Faults[0].Reason, "as spec.workloadTemplate.manifests[0] does") {
		t.Errorf("%+v", twice)
	}
	long := render.Render(application(t, "targetNodeGroups: [{name: "+strings.Repeat("n", 250)+"}]", deployment), nil)
	if len(long.Faults) != 1 || long.Objects[0].Content != nil {
		t.Errorf("%+v", long)
	}
}

// FuzzRender: nothing that a manifest or a scope contains makes it panic, or two runs differ.
func FuzzRender(f *testing.F) {
	f.Add([]byte(`{"targetNodeGroups":[{"name":"n","overriders":{"replicas":2}}]}`), []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"w"},"spec":{"template":{"spec":{"containers":[{"name":"c","image":"i"}]}}}}`))
	f.Add([]byte(`{"targetNodeLabels":[{"labelSelector":{"matchLabels":{"a":"b"}}}]}`), []byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"w"},"spec":{"containers":"none"}}`))
	f.Fuzz(func(t *testing.T, scope, manifest []byte) {
		app := &apps.EdgeApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "app"}}
		if json.Unmarshal(scope, &app.Spec.WorkloadScope) != nil {
			return
		}
		var m apps.Manifest
		m.Raw = manifest
		app.Spec.WorkloadTemplate.Manifests = []apps.Manifest{m}
		first := render.Render(app, nil)
		if diff := cmp.Diff(first, render.Render(app, nil)); diff != "" {
			t.Error(diff)
		}
		for _, o := range first.Objects {
			if o.ID.Name == "" || o.ID.Kind == "" {
				t.Errorf("an object without identity: %+v", o)
			}
		}
	})
}
