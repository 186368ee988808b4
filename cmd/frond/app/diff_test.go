package app

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/controllers/applications/render"
)

func rendered(t *testing.T, spec string, groups ...*apps.NodeGroup) render.Result {
	t.Helper()
	app := &apps.EdgeApplication{ObjectMeta: metav1.ObjectMeta{Namespace: "shops", Name: "shop", Annotations: map[string]string{"frond.io/target-node-groups": "region=eu"}}}
	if err := yaml.UnmarshalStrict([]byte(spec), &app.Spec); err != nil {
		t.Fatal(err)
	}
	result, err := renderAll(app, groups)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func TestCompare(t *testing.T) {
	north := &apps.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "north", Labels: map[string]string{"region": "eu"}, Annotations: map[string]string{"city": "Oslo"}}}
	const config = `{apiVersion: v1, kind: ConfigMap, metadata: {name: site, annotations: {frond.io/multiply: "true"}}, data: `
	before := rendered(t, `{workloadScope: {}, workloadTemplate: {manifests: [`+config+`{city: "${group.annotations.city}", old: x}}, {apiVersion: v1, kind: ConfigMap, metadata: {name: once}}, {apiVersion: v1, kind: Service, metadata: {name: same}}]}}`, north)
	after := `{workloadScope: {}, workloadTemplate: {manifests: [` + config + `{city: there, list: "[]"}}, {apiVersion: v1, kind: Service, metadata: {name: same}}, {apiVersion: v1, kind: Service, metadata: {name: new}, spec: {ports: [{port: 80}], externalIPs: []}}]}}`
	var out bytes.Buffer
	if err := printChanges("", compare(before, rendered(t, after, north)), &out); err != nil {
		t.Fatal(err)
	}
	const want = `ConfigMap shops/once removed
ConfigMap shops/site-north changed
  - data.city: "Oslo"
  + data.city: "there"
  + data.list: "[]"
  - data.old: "x"
Service shops/new added
  + apiVersion: "v1"
  + kind: "Service"
  + metadata.annotations.apps.kubeedge.io/service-topology: "range-nodegroup"
  + metadata.name: "new"
  + metadata.namespace: "shops"
  + spec.externalIPs: []
  + spec.ports[0].port: 80
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	// What cannot be made stays as it is, and a manifest without a name keeps everything.
	bad := rendered(t, `{workloadScope: {}, workloadTemplate: {manifests: [`+config+`{city: "${group.colour}"}}, {apiVersion: v1, kind: Service, metadata: {}}]}}`, north)
	if changes := compare(before, bad); len(changes) > 0 {
		t.Errorf("%+v", changes)
	}
	if changes := compare(before, before); len(changes) > 0 {
		t.Errorf("%+v", changes)
	}
}
