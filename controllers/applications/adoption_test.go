package applications_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/applications"
	"github.com/frond-edge/frond/controllers/applications/contained"
	"github.com/frond-edge/frond/test/kit"
)

// asKubeEdge makes an object as KubeEdge's controller does.
func (e *env) asKubeEdge(o metav1.Object) {
	e.Helper()
	app := e.get("shop")
	o.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(&app, apps.GroupVersion().WithKind(apps.EdgeApplicationKind))})
	o.SetAnnotations(map[string]string{"apps.kubeedge.io/last-applied-template": "{}"})
	options := metav1.CreateOptions{FieldManager: "controllermanager"}
	var err error
	switch o := o.(type) {
	case *appsv1.Deployment:
		_, err = e.client.AppsV1().Deployments(e.namespace).Create(e.Context(), o, options)
	case *corev1.ConfigMap:
		_, err = e.client.CoreV1().ConfigMaps(e.namespace).Create(e.Context(), o, options)
	}
	kit.Must(e, err)
}

// TestController_ComesFromKubeEdge: objects that KubeEdge made are the application's, with all their fields, and its list of them is read.
func TestController_ComesFromKubeEdge(t *testing.T) {
	e := newEnv(t)
	manifest := strings.Replace(manifests("1")[0], `"image":"web:1"`, `"image":"web:1","env":[{"name":"OLD","value":"x"}]`, 1)
	gone := fmt.Sprintf(`[{"ordinal":0,"group":"apps","version":"v1","kind":"Deployment","namespace":%[1]q,"name":"web-%[1]s-north"},{"ordinal":1,"version":"v1","kind":"ConfigMap","namespace":%[1]q,"name":"gone"}]`, e.namespace)
	e.put("shop", map[string]string{contained.Annotation: gone}, []string{manifest}, "north")
	deployment := &appsv1.Deployment{}
	kit.Must(t, json.Unmarshal([]byte(manifest), deployment))
	deployment.Name = "web-" + e.group("north")
	e.asKubeEdge(deployment)
	e.asKubeEdge(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "gone"}})
	live := func() *appsv1.Deployment {
		o, err := e.client.AppsV1().Deployments(e.namespace).Get(t.Context(), deployment.Name, metav1.GetOptions{})
		kit.Must(t, err)
		return o
	}
	before := live()

	e.startOwner()
	e.awaitCondition("shop", applications.ConditionApplied, metav1.ConditionTrue, "")
	kit.Succeeds(t, changeTimeout, func() error {
		if _, err := e.client.CoreV1().ConfigMaps(e.namespace).Get(t.Context(), "gone", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("an object of KubeEdge's list that no manifest names is there: %w", err)
		}
		return nil
	})
	if now := live(); now.UID != before.UID || now.Spec.Template.Spec.NodeSelector[names.LabelNodeGroup] != e.group("north") {
		t.Errorf("%+v", now)
	}
	e.put("shop", nil, manifests("1")[:1], "north")
	kit.Succeeds(t, changeTimeout, func() error {
		if env := live().Spec.Template.Spec.Containers[0].Env; len(env) > 0 {
			return fmt.Errorf("a variable that was removed from the manifest stays: %v", env)
		}
		return nil
	})
}

// TestController_DriftedPodsAreNotReady: pods of a template that somebody else has set show nothing about the application.
func TestController_DriftedPodsAreNotReady(t *testing.T) {
	e := newEnv(t)
	e.startOwner()
	e.put("shop", nil, manifests("1"), "north", "south")
	e.awaitCondition("shop", applications.ConditionApplied, metav1.ConditionTrue, "")
	e.makeReady("north", 2)
	e.awaitCondition("shop", applications.ConditionReady, metav1.ConditionFalse, "2 of 4 pods")
	e.setImage("north", "web:mine")
	e.awaitCondition("shop", applications.ConditionDrifted, metav1.ConditionTrue, e.group("north"))
	e.makeReady("north", 2)
	e.makeReady("south", 1) // seen after north's
	e.awaitCondition("shop", applications.ConditionReady, metav1.ConditionFalse, "1 of 4 pods")
	e.annotate("shop", names.AnnotationDrift, "correct") // also what is known already
	e.awaitImages(map[string]string{"north": "web:1", "south": "web:1"})
}

// TestController_TooManyObjects: what the list cannot name is not made, and the application says why.
func TestController_TooManyObjects(t *testing.T) {
	e := newEnv(t)
	e.startOwner()
	e.put("shop", nil, manifests("1"), "north")
	e.awaitImages(map[string]string{"north": "web:1"})
	many := manifests("2")
	for i := range 900 {
		many = append(many, fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%0240d"}}`, i))
	}
	e.put("shop", nil, many, "north")
	e.awaitCondition("shop", applications.ConditionApplied, metav1.ConditionFalse, "903 objects")
	list, err := e.client.CoreV1().ConfigMaps(e.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "!x", Limit: 10})
	kit.Must(t, err)
	var made []string
	for _, o := range list.Items {
		if o.Name != "kube-root-ca.crt" {
			made = append(made, o.Name)
		}
	}
	if diff := cmp.Diff([]string{"settings"}, made); diff != "" {
		t.Error(diff)
	}
	e.put("shop", nil, manifests("3"), "north")
	e.awaitImages(map[string]string{"north": "web:3"})
}
