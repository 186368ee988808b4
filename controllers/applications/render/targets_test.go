package render_test

import (
	"strings"
	"testing"

	"github.com/frond-edge/frond/controllers/applications/render"
)

const siteConfig = `{apiVersion: v1, kind: ConfigMap, metadata: {name: site, annotations: {frond.io/multiply: "true"}}, data: {a: b}}`

// TestRender_OverridersOfOtherKinds: the differences of a target concern the manifests that have what they change, as in KubeEdge: a ConfigMap beside
// the Deployment has no image, and another Deployment not the container.
func TestRender_OverridersOfOtherKinds(t *testing.T) {
	other := strings.NewReplacer("name: web,", "name: other,", "{name: log, image: logger}", "{name: sidecar, image: proxy}").Replace(deployment)
	result := render.Render(application(t, `targetNodeGroups: [{name: north, overriders: {replicas: 3, imageOverriders: [{component: Tag, operator: replace, value: v2}],
  argsOverriders: [{containerName: log, operator: add, value: [-v]}]}}]`, deployment, siteConfig, other), nil)
	if len(result.Faults) > 0 || len(result.Objects) != 3 {
		t.Fatalf("%v", result.Faults)
	}
	if got := at(t, result.Objects[1], "spec"); got != "null" {
		t.Errorf("the ConfigMap has a spec: %s", got)
	}
	if got := at(t, result.Objects[0], pod+".containers.1.args"); got != `["-v"]` {
		t.Errorf("args %s", got)
	}
	if got := at(t, result.Objects[2], pod+".containers.0.args"); got != "null" {
		t.Errorf("args of the other Deployment %s", got)
	}
}

// TestRender_NumbersStayNumbers: large integers are not rounded.
func TestRender_NumbersStayNumbers(t *testing.T) {
	result := render.Render(application(t, "targetNodeGroups: []", `{apiVersion: example.com/v1, kind: Meter, metadata: {name: m}, spec: {serial: 9007199254740993, factor: 0.5}}`), nil)
	if got := at(t, result.Objects[0], "spec"); got != `{"factor":0.5,"serial":9007199254740993}` {
		t.Errorf("spec %s", got)
	}
	if serial, ok := result.Objects[0].Content.Object["spec"].(map[string]any)["serial"].(int64); !ok {
		t.Errorf("%T %d", result.Objects[0].Content.Object["spec"].(map[string]any)["serial"], serial)
	}
}

// TestRender_UnidentifiedTargetsMakeItIncomplete: nobody knows which objects belonged to a target whose name is gone, so none may be deleted.
func TestRender_UnidentifiedTargetsMakeItIncomplete(t *testing.T) {
	for _, scope := range []string{`targetNodeGroups: [{name: ""}, {name: north}]`, `{targetNodeGroups: [{name: north}], targetNodeLabels: [{labelSelector: {}}]}`} {
		if result := render.Render(application(t, scope, deployment), nil); result.Complete || len(result.Objects) != 1 {
			t.Errorf("%s: %+v", scope, result)
		}
	}
}

// TestRender_ValuesAreBounded: a long annotation that is used often must not fill the memory of cloudcore.
func TestRender_ValuesAreBounded(t *testing.T) {
	config := strings.Replace(siteConfig, "a: b", `a: "`+strings.Repeat("${group.annotations.x}", 1000)+`"`, 1)
	result := render.Render(application(t, "targetNodeGroups: [{name: north}]", config), func(string) map[string]string {
		return map[string]string{"x": strings.Repeat("x", 100_000)}
	})
	if len(result.Faults) != 1 || !strings.Contains(result.Faults[0].Reason, "longer than") || result.Objects[0].Content != nil {
		t.Errorf("faults %v", result.Faults)
	}
}
