package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/applications/rollout"
	"github.com/frond-edge/frond/test/kit"
)

// TestApp_RenderPrintsThePagesExample renders the example of docs/operations/applications.md without a cluster.
func TestApp_RenderPrintsThePagesExample(t *testing.T) {
	page, err := os.ReadFile("../../docs/operations/applications.md")
	kit.Must(t, err)
	_, example, _ := strings.Cut(string(page), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	file := filepath.Join(t.TempDir(), "shop.yaml")
	kit.Must(t, os.WriteFile(file, []byte(example), 0o600))
	code, stdout, stderr := runFrond("app", "render", "-f", file, "-o", "json")
	var objects []unstructured.Unstructured
	if err := json.Unmarshal([]byte(stdout), &objects); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, stderr)
	}
	var got []string
	for _, o := range objects {
		got = append(got, o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName())
	}
	if text := strings.Join(got, ", "); text != "Deployment shops/web-north, Deployment shops/web-south, Service shops/web" {
		t.Errorf("rendered %s", text)
	}
	kit.Must(t, os.WriteFile(file, []byte(strings.Replace(example, "operator: replace", "operator: colour", 1)), 0o600))
	code, stdout, stderr = runFrond("app", "render", "-f", file, "--group", "north")
	if code != 1 || !strings.Contains(stderr, `(target south): overriders.imageOverriders[0]: operator "colour"`) || !strings.Contains(stdout, "name: web-north") || strings.Contains(stdout, "kind: Service") {
		t.Errorf("a faulty target: exit code %d\n%s%s", code, stdout, stderr)
	}
}

// TestApp_StatusHistoryUndo drives an application whose status and revisions the test writes as cloudcore does.
func TestApp_StatusHistoryUndo(t *testing.T) {
	i := newInstalledCluster(t)
	i.mustRun("init", "--hub-url", "tls://hub.example.com:7422")
	client, err := dynamic.NewForConfig(sharedCluster.Cluster(t).Config())
	kit.Must(t, err)
	applications := client.Resource(apps.GroupVersion().WithResource(apps.EdgeApplicationsResource)).Namespace("default")
	o := &unstructured.Unstructured{}
	kit.Must(t, yaml.Unmarshal([]byte(`{apiVersion: apps.kubeedge.io/v1alpha1, kind: EdgeApplication, metadata: {name: shop}, spec: {workloadScope: {targetNodeGroups: [{name: north}]}}}`), &o.Object))
	kit.Succeeds(t, 30*time.Second, func() error { // the kind may be new
		var err error
		if o, err = applications.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			o = o.DeepCopy()
		}
		return err
	})
	kit.Must(t, unstructured.SetNestedMap(o.Object, map[string]any{
		"targets":    []any{map[string]any{"name": "north", "wanted": int64(3), "ready": int64(1), "offline": int64(2)}},
		"conditions": []any{map[string]any{"type": "Ready", "status": "False", "reason": "NotAllReady", "message": "1 of 3", "lastTransitionTime": "2026-01-01T00:00:00Z"}},
		"rollout":    map[string]any{"revision": "shop-new", "stableRevision": "shop-old", "step": int64(1), "steps": int64(3), "phase": "AwaitingApproval", "message": "look at it"},
	}, "status"))
	o, err = applications.UpdateStatus(t.Context(), o, metav1.UpdateOptions{})
	kit.Must(t, err)
	for _, test := range []struct{ args, want string }{
		{"app status", "NotAllReady"},
		{"app status shop", "AwaitingApproval, step 1 of 3. look at it"},
		{"app approve shop", "approved"},
		{"app pause shop", "paused"},
		{"app history shop", "NUMBER"},
	} {
		if out := i.mustRun(strings.Fields(test.args)...); !strings.Contains(out, test.want) {
			t.Errorf("frond %s: %q is not in\n%s", test.args, test.want, out)
		}
	}
	file := filepath.Join(t.TempDir(), "shop.yaml")
	const same = `{apiVersion: apps.kubeedge.io/v1alpha1, kind: EdgeApplication, metadata: {name: shop}, spec: {workloadScope: {targetNodeGroups: [{name: north}]}}}`
	for text, want := range map[string]int{same: 0, strings.Replace(same, "spec: {", "spec: {workloadTemplate: {manifests: [{apiVersion: v1, kind: Service, metadata: {name: web}}]}, ", 1): 3, strings.Replace(same, "name: shop", "name: other", 1): 0} {
		kit.Must(t, os.WriteFile(file, []byte(text), 0o600))
		if code, stdout, stderr := i.runCommand("app", "diff", "-f", file); code != want || (want == 3) != strings.Contains(stdout, "Service default/web added") {
			t.Errorf("diff of %s: exit code %d\n%s%s", text, code, stdout, stderr)
		}
	}
	if code, _, stderr := i.runCommand("app", "diff", "shop"); code != 1 || !strings.Contains(stderr, "there is no revision shop-old") {
		t.Errorf("diff without an earlier specification: exit code %d, %s", code, stderr)
	}
	o, err = applications.Get(t.Context(), "shop", metav1.GetOptions{})
	kit.Must(t, err)
	if got := o.GetAnnotations(); got[names.AnnotationRolloutApproved] != rollout.FormatApproval("shop-new", 1, false) || got[names.AnnotationRolloutPaused] != "true" {
		t.Errorf("annotations %v", got)
	}
}
