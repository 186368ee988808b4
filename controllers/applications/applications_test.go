package applications_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/applications"
	"github.com/frond-edge/frond/controllers/applications/contained"
	"github.com/frond-edge/frond/controllers/applications/rollout"
	"github.com/frond-edge/frond/controllers/groups/membership"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// shared has no controller of Deployments: the tests write their status.
var shared kubetest.Shared

func TestMain(m *testing.M) { shared.Verify(m) }

// changeTimeout is how long a change may take on a busy machine.
const changeTimeout = time.Minute

// ownership is an Ownership of the applications of one namespace, which a test switches on and off.
type ownership struct {
	prefix string

	mu      sync.Mutex
	on      bool          // guarded by mu
	changed chan struct{} // guarded by mu
}

func newOwnership(namespace string, on bool) *ownership {
	return &ownership{prefix: "edgeapplication/" + namespace + "/", on: on, changed: make(chan struct{})}
}

func (o *ownership) set(on bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.on = on
	close(o.changed)
	o.changed = make(chan struct{})
}

func (o *ownership) Owns(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.on && strings.HasPrefix(name, o.prefix)
}

func (*ownership) Term(string) uint64 { return 1 }
func (*ownership) LeaseValid() bool   { return true }
func (o *ownership) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

// env is a cluster with controllers. The names of its groups begin with the namespace.
type env struct {
	testing.TB
	client    kubernetes.Interface
	kinds     dynamic.Interface
	namespace string

	mu     sync.Mutex
	events []string // guarded by mu
}

func newEnv(t testing.TB) *env {
	t.Helper()
	cluster := shared.Cluster(t)
	kinds, err := dynamic.NewForConfig(cluster.Config())
	kit.Must(t, err)
	e := &env{TB: t, client: cluster.Client(t), kinds: kinds, namespace: cluster.Namespace(t)}
	all, err := crd.Definitions()
	kit.Must(t, err)
	definitions := kinds.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, data := range all {
		o := &unstructured.Unstructured{}
		kit.Must(t, yaml.Unmarshal(data, &o.Object))
		if !strings.HasSuffix(o.GetName(), "."+apps.Group) {
			continue
		}
		if _, err := definitions.Create(t.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	kit.Succeeds(t, changeTimeout, func() error {
		_, err := e.applications().List(t.Context(), metav1.ListOptions{})
		_, err2 := e.nodeGroups().List(t.Context(), metav1.ListOptions{})
		return errors.Join(err, err2)
	})
	return e
}

func (e *env) applications() dynamic.ResourceInterface {
	return e.kinds.Resource(apps.GroupVersion().WithResource(apps.EdgeApplicationsResource)).Namespace(e.namespace)
}

func (e *env) nodeGroups() dynamic.ResourceInterface {
	return e.kinds.Resource(apps.GroupVersion().WithResource(apps.NodeGroupsResource))
}

// start runs a replica until the test ends or stop is called.
func (e *env) start(owns *ownership) (stop func()) {
	e.Helper()
	config := shared.Cluster(e).ConfigWithRules(e, "frond-applications-test", append(applications.Rules(), membership.Rules()...))
	config.UserAgent = "frond-applications-test"
	client, err := kubernetes.NewForConfig(config)
	kit.Must(e, err)
	dynamicClient, err := dynamic.NewForConfig(config)
	kit.Must(e, err)
	groupClient, err := membership.NewGroupClient(config)
	kit.Must(e, err)
	objects, err := podcache.New(shared.Cluster(e).Config()) // pods are not this package's rules
	kit.Must(e, err)
	log := zaptest.NewLogger(e)
	view := membership.New(objects, membership.ListGroups(groupClient), log)
	warn := func(about corev1.ObjectReference, reason, message string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.events = append(e.events, reason+" "+about.Name+": "+message)
	}
	controller := applications.New(applications.Clients{
		Kube: client, Dynamic: dynamicClient, Applications: groupClient,
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client.Discovery())),
	}, objects, view, owns, warn, log)
	ctx, cancel := context.WithCancel(context.WithoutCancel(e.Context()))
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error { return objects.Start(gctx) })
	g.Go(func() error { return view.Start(gctx) })
	g.Go(func() error { return controller.Start(gctx) })
	stop = sync.OnceFunc(func() {
		cancel()
		if err := g.Wait(); err != nil {
			e.Errorf("controller: %v", err)
		}
	})
	e.Cleanup(stop)
	return stop
}

func (e *env) startOwner() { e.start(newOwnership(e.namespace, true)) }

func (e *env) group(suffix string) string { return e.namespace + "-" + suffix }

func (e *env) createGroup(suffix string, labels, annotations map[string]string) {
	e.Helper()
	g := &apps.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: apps.GroupVersion().String(), Kind: apps.NodeGroupKind},
		ObjectMeta: metav1.ObjectMeta{Name: e.group(suffix), Labels: labels, Annotations: annotations},
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(g)
	kit.Must(e, err)
	_, err = e.nodeGroups().Create(e.Context(), &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
	kit.Must(e, err)
	e.Cleanup(func() {
		_ = e.nodeGroups().Delete(context.WithoutCancel(e.Context()), g.Name, metav1.DeleteOptions{})
	})
}

const webManifest = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"web"}},
  "template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"web","image":"web:VERSION"}]}}}}`

// manifests returns the template of a version of the application: a Deployment for each group, a Service and a ConfigMap.
func manifests(version string) []string {
	return []string{
		strings.ReplaceAll(webManifest, "VERSION", version),
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"selector":{"app":"web"},"ports":[{"port":80}]}}`,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings"},"data":{"version":"` + version + `"}}`,
	}
}

// put creates or replaces the specification of an application. A target may have overriders: "north {replicas: 0}".
func (e *env) put(name string, annotations map[string]string, manifests []string, targets ...string) {
	e.Helper()
	app := &apps.EdgeApplication{
		TypeMeta:   metav1.TypeMeta{APIVersion: apps.GroupVersion().String(), Kind: apps.EdgeApplicationKind},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: e.namespace, Annotations: annotations},
	}
	for _, text := range manifests {
		var m apps.Manifest
		m.Raw = []byte(text)
		app.Spec.WorkloadTemplate.Manifests = append(app.Spec.WorkloadTemplate.Manifests, m)
	}
	for _, target := range targets {
		suffix, overriders, _ := strings.Cut(target, " ")
		g := apps.TargetNodeGroup{Name: e.group(suffix)}
		kit.Must(e, yaml.UnmarshalStrict([]byte(overriders), &g.Overriders))
		app.Spec.WorkloadScope.TargetNodeGroups = append(app.Spec.WorkloadScope.TargetNodeGroups, g)
	}
	text, err := json.Marshal(app)
	kit.Must(e, err)
	fields := map[string]any{}
	kit.Must(e, json.Unmarshal(text, &fields))
	delete(fields, "status")
	kit.Succeeds(e, changeTimeout, func() error {
		before, err := e.applications().Get(e.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err := e.applications().Create(e.Context(), &unstructured.Unstructured{Object: fields}, metav1.CreateOptions{})
			return err
		}
		if err != nil {
			return err
		}
		before.Object["spec"] = fields["spec"]
		for key, value := range annotations {
			kit.Must(e, unstructured.SetNestedField(before.Object, value, "metadata", "annotations", key))
		}
		_, err = e.applications().Update(e.Context(), before, metav1.UpdateOptions{})
		return err
	})
}

func (e *env) annotate(name, key, value string) {
	e.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{key: value}}})
	kit.Must(e, err)
	_, err = e.applications().Patch(e.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	kit.Must(e, err)
}

func (e *env) get(name string) apps.EdgeApplication {
	e.Helper()
	o, err := e.applications().Get(e.Context(), name, metav1.GetOptions{})
	kit.Must(e, err)
	var app apps.EdgeApplication
	text, err := o.MarshalJSON()
	kit.Must(e, err)
	kit.Must(e, json.Unmarshal(text, &app))
	return app
}

// images returns the image of each Deployment, by the suffix of its group.
func (e *env) images() map[string]string {
	e.Helper()
	list, err := e.client.AppsV1().Deployments(e.namespace).List(e.Context(), metav1.ListOptions{})
	kit.Must(e, err)
	images := map[string]string{}
	for _, d := range list.Items {
		images[strings.TrimPrefix(d.Name, "web-"+e.namespace+"-")] = d.Spec.Template.Spec.Containers[0].Image
	}
	return images
}

func (e *env) awaitImages(want map[string]string) {
	e.Helper()
	kit.Succeeds(e, changeTimeout, func() error {
		if diff := cmp.Diff(want, e.images()); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// awaitCondition waits until a condition is about the present specification, has a status, and a message with the text.
func (e *env) awaitCondition(name, kind string, status metav1.ConditionStatus, text string) {
	e.Helper()
	kit.Succeeds(e, changeTimeout, func() error {
		app := e.get(name)
		c := meta.FindStatusCondition(app.Status.Conditions, kind)
		if c == nil || c.Status != status || !strings.Contains(c.Message, text) || c.ObservedGeneration != app.Generation {
			return fmt.Errorf("generation %d, %+v", app.Generation, c)
		}
		return nil
	})
}

// makeReady writes the status that a controller of Deployments would write.
func (e *env) makeReady(suffix string, ready int32) {
	e.Helper()
	kit.Succeeds(e, changeTimeout, func() error {
		d, err := e.client.AppsV1().Deployments(e.namespace).Get(e.Context(), "web-"+e.group(suffix), metav1.GetOptions{})
		if err != nil {
			return err
		}
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: *d.Spec.Replicas, UpdatedReplicas: *d.Spec.Replicas, ReadyReplicas: ready, AvailableReplicas: ready}
		_, err = e.client.AppsV1().Deployments(e.namespace).UpdateStatus(e.Context(), d, metav1.UpdateOptions{})
		return err
	})
}

// writes returns the requests of the controllers that wrote, since a time.
func (e *env) writes(since time.Time) []string {
	var all []string
	for _, entry := range shared.Cluster(e).Audit(e, since, func(a kubetest.AuditEntry) bool {
		return strings.Contains(a.UserAgent, "frond-applications-test") && strings.Contains(a.URI, e.namespace) && slices.Contains([]string{"create", "update", "patch", "delete"}, a.Verb)
	}) {
		all = append(all, entry.Verb+" "+entry.URI)
	}
	return all
}

func TestController_MakesObjectsForEachGroup(t *testing.T) {
	e := newEnv(t)
	e.createGroup("north", nil, nil)
	e.startOwner()
	e.put("shop", nil, manifests("1"), "north", "south {replicas: 0}") // there is no group south: made all the same, as KubeEdge does
	e.awaitImages(map[string]string{"north": "web:1", "south": "web:1"})
	e.awaitCondition("shop", applications.ConditionReady, metav1.ConditionFalse, "0 of 2 pods in 2 targets are ready")
	e.makeReady("north", 1)
	e.awaitCondition("shop", applications.ConditionReady, metav1.ConditionFalse, "1 of 2 pods")
	e.makeReady("north", 2)
	e.awaitCondition("shop", applications.ConditionReady, metav1.ConditionTrue, "2 of 2 pods")
	app := e.get("shop")
	var got []string
	for _, s := range app.Status.WorkloadStatus {
		got = append(got, fmt.Sprintf("%d %s %s %s", s.Identifier.Ordinal, s.Identifier.Resource, strings.ReplaceAll(s.Identifier.Name, e.namespace, ""), s.Conditions))
	}
	if diff := cmp.Diff([]string{"0 deployments web--north Available", "0 deployments web--south Available", "1 services web Available", "2 configmaps settings Available"}, got); diff != "" {
		t.Error(diff)
	}
	d, err := e.client.AppsV1().Deployments(e.namespace).Get(t.Context(), "web-"+e.group("north"), metav1.GetOptions{})
	kit.Must(t, err)
	if len(d.Labels) != 0 || !metav1.IsControlledBy(d, &app) || d.Spec.Template.Spec.NodeSelector[names.LabelNodeGroup] != e.group("north") {
		t.Errorf("%+v", d)
	}
	if !strings.Contains(app.Annotations[contained.Annotation], `"kind":"Service"`) {
		t.Errorf("contained %s", app.Annotations[contained.Annotation])
	}
	calm := time.Now()
	e.put("other", nil, manifests("x")[2:]) // passes through the same queue
	e.awaitCondition("other", applications.ConditionApplied, metav1.ConditionFalse, "belongs to EdgeApplication shop")
	for _, write := range e.writes(calm) {
		if !strings.Contains(write, "other") && !strings.HasSuffix(write, "/controllerrevisions") {
			t.Errorf("written although nothing changed: %s", write)
		}
	}
}

func TestController_PrunesWhatIsNoLongerWanted(t *testing.T) {
	e := newEnv(t)
	e.startOwner()
	e.put("shop", nil, manifests("1"), "north", "south")
	e.awaitImages(map[string]string{"north": "web:1", "south": "web:1"})
	// A manifest without a name: nobody knows what is wanted, so nothing is deleted, and what is known is applied.
	e.put("shop", nil, []string{strings.ReplaceAll(webManifest, "VERSION", "2"), `{"apiVersion":"v1","kind":"ConfigMap"}`}, "north")
	e.awaitImages(map[string]string{"north": "web:2", "south": "web:1"})
	e.awaitCondition("shop", applications.ConditionValid, metav1.ConditionFalse, "manifests[1]: has no metadata.name")
	// A failing target keeps its last version; reordered manifests are the same objects.
	all := manifests("3")
	slices.Reverse(all)
	e.put("shop", nil, all[1:], "north {envOverriders: [{containerName: nobody, operator: add}]}", "south")
	e.awaitImages(map[string]string{"north": "web:2", "south": "web:3"})
	e.awaitCondition("shop", applications.ConditionValid, metav1.ConditionFalse, `there is no container "nobody"`)
	if _, err := e.client.CoreV1().ConfigMaps(e.namespace).Get(t.Context(), "settings", metav1.GetOptions{}); err != nil {
		t.Errorf("what the last version of a faulty target may need is gone: %v", err)
	}
	e.put("shop", nil, all[1:], "north", "south")
	e.awaitImages(map[string]string{"north": "web:3", "south": "web:3"})
	e.awaitConfigMapGone("settings")
	e.put("shop", nil, manifests("3")[:1], "south")
	e.awaitImages(map[string]string{"south": "web:3"})
}

func (e *env) awaitConfigMapGone(name string) {
	e.Helper()
	kit.Succeeds(e, changeTimeout, func() error {
		_, err := e.client.CoreV1().ConfigMaps(e.namespace).Get(e.Context(), name, metav1.GetOptions{})
		if !apierrors.IsNotFound(err) {
			return fmt.Errorf("the ConfigMap is there: %w", err)
		}
		return nil
	})
}

// TestController_KeepsWhatKubeEdgeMade: an application that comes from KubeEdge has objects and their list, and no status of a rollout. A plan holds its first
// revision back for most groups; what they have must stay.
func TestController_KeepsWhatKubeEdgeMade(t *testing.T) {
	e := newEnv(t)
	owns := newOwnership(e.namespace, false)
	e.start(owns)
	plan := map[string]string{names.AnnotationRollout: strings.Replace(rolloutPlan, "CANARY", e.group("b"), 1)}
	e.put("shop", plan, manifests("2")[:1], "a", "b")
	app := e.get("shop")
	for _, suffix := range []string{"a", "b"} {
		d := &appsv1.Deployment{}
		kit.Must(t, json.Unmarshal([]byte(strings.ReplaceAll(webManifest, "VERSION", "1")), d))
		d.Name = "web-" + e.group(suffix)
		d.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(&app, apps.GroupVersion().WithKind(apps.EdgeApplicationKind))}
		_, err := e.client.AppsV1().Deployments(e.namespace).Create(t.Context(), d, metav1.CreateOptions{})
		kit.Must(t, err)
	}
	e.annotate("shop", contained.Annotation, fmt.Sprintf(`[{"ordinal":0,"group":"apps","version":"v1","kind":"Deployment","namespace":%[1]q,"name":"web-%[1]s-a"},`+
		`{"ordinal":0,"group":"apps","version":"v1","kind":"Deployment","namespace":%[1]q,"name":"web-%[1]s-b"}]`, e.namespace))
	deployments := e.client.AppsV1().Deployments(e.namespace)
	before, err := deployments.Get(t.Context(), "web-"+e.group("a"), metav1.GetOptions{})
	kit.Must(t, err)
	owns.set(true)
	e.awaitImages(map[string]string{"a": "web:1", "b": "web:2"})
	e.awaitRollout(apps.RolloutProgressing, 1, "")
	e.makeReady("b", 2)
	e.awaitImages(map[string]string{"a": "web:2", "b": "web:2"})
	after, err := deployments.Get(t.Context(), before.Name, metav1.GetOptions{})
	kit.Must(t, err)
	if after.UID != before.UID {
		t.Error("the Deployment was deleted and made again")
	}
}

// TestController_SupersededRevisionKeepsItsObjects: a group that got a revision which was superseded in the middle of its rollout still needs the objects that
// this revision alone has.
func TestController_SupersededRevisionKeepsItsObjects(t *testing.T) {
	e := newEnv(t)
	e.startOwner()
	plan := map[string]string{names.AnnotationRollout: strings.Replace(rolloutPlan, "CANARY", e.group("a"), 1)}
	config := func(version string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"settings-` + version + `"},"data":{"version":"` + version + `"}}`
	}
	put := func(version string, plan map[string]string) {
		e.put("shop", plan, []string{strings.ReplaceAll(webManifest, "VERSION", version), config(version)}, "a", "b", "c", "d")
	}
	put("1", nil)
	e.awaitImages(map[string]string{"a": "web:1", "b": "web:1", "c": "web:1", "d": "web:1"})
	put("2", plan)
	e.awaitImages(map[string]string{"a": "web:2", "b": "web:1", "c": "web:1", "d": "web:1"})
	e.makeReady("a", 2)
	e.awaitImages(map[string]string{"a": "web:2", "b": "web:2", "c": "web:1", "d": "web:1"})
	put("3", plan)
	e.awaitImages(map[string]string{"a": "web:3", "b": "web:2", "c": "web:1", "d": "web:1"})
	kit.Succeeds(t, changeTimeout, func() error { // it comes after the Deployment
		_, err := e.client.CoreV1().ConfigMaps(e.namespace).Get(t.Context(), "settings-3", metav1.GetOptions{})
		return err
	})
	e.makeReady("c", 2) // another pass, after which nothing may be gone either
	e.awaitCondition("shop", applications.ConditionReady, metav1.ConditionFalse, "")
	for _, version := range []string{"1", "2"} {
		if data := e.configData("settings-" + version); data != version {
			t.Errorf("settings-%s has %s", version, data)
		}
	}
	put("1", plan) // the stable revision: to all at once
	e.awaitImages(map[string]string{"a": "web:1", "b": "web:1", "c": "web:1", "d": "web:1"})
	e.awaitConfigMapGone("settings-2")
	e.awaitConfigMapGone("settings-3")
}

func TestController_LeavesForeignObjects(t *testing.T) {
	e := newEnv(t)
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}, Data: map[string]string{"whose": "mine"}}
	_, err := e.client.CoreV1().ConfigMaps(e.namespace).Create(t.Context(), foreign, metav1.CreateOptions{})
	kit.Must(t, err)
	e.startOwner()
	e.put("shop", nil, append(manifests("1"), `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"evil"}}`, `{"apiVersion":"example.com/v1","kind":"Nothing","metadata":{"name":"n"}}`,
		`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"r"}}`), "north")
	e.awaitImages(map[string]string{"north": "web:1"})
	e.awaitCondition("shop", applications.ConditionApplied, metav1.ConditionFalse, "settings: exists already")
	e.awaitCondition("shop", applications.ConditionApplied, metav1.ConditionFalse, "belongs to the whole cluster")
	e.awaitCondition("shop", applications.ConditionApplied, metav1.ConditionFalse, "the cluster has no kind Nothing")
	e.awaitCondition("shop", applications.ConditionApplied, metav1.ConditionFalse, "cloudcore may not read objects of this kind")
	o, err := e.client.CoreV1().ConfigMaps(e.namespace).Get(t.Context(), "settings", metav1.GetOptions{})
	kit.Must(t, err)
	if o.Data["whose"] != "mine" || o.Data["version"] != "" {
		t.Errorf("changed to %v", o.Data)
	}
	e.annotate("shop", names.AnnotationAdopt, "true")
	kit.Succeeds(t, changeTimeout, func() error {
		o, err := e.client.CoreV1().ConfigMaps(e.namespace).Get(t.Context(), "settings", metav1.GetOptions{})
		if err != nil || o.Data["version"] != "1" {
			return fmt.Errorf("not taken over: %v, %w", o.Data, err)
		}
		return nil
	})
	e.put("shop", nil, manifests("1")[:1], "north")
	e.awaitCondition("shop", applications.ConditionApplied, metav1.ConditionTrue, "")
}

// setImage changes a Deployment as a person does.
func (e *env) setImage(suffix, image string) {
	e.Helper()
	patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":%q}]}}}}`, image)
	_, err := e.client.AppsV1().Deployments(e.namespace).Patch(e.Context(), "web-"+e.group(suffix), types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	kit.Must(e, err)
}

func TestController_DriftIsReportedOrCorrected(t *testing.T) {
	e := newEnv(t)
	e.startOwner()
	e.put("shop", nil, manifests("1"), "north")
	e.awaitCondition("shop", applications.ConditionApplied, metav1.ConditionTrue, "")
	e.setImage("north", "web:mine")
	e.awaitCondition("shop", applications.ConditionDrifted, metav1.ConditionTrue, "Deployment "+e.namespace+"/web-")
	if images := e.images(); images["north"] != "web:mine" {
		t.Errorf("images %v", images)
	}
	e.annotate("shop", names.AnnotationDrift, "correct")
	e.setImage("north", "web:mine2")
	e.awaitImages(map[string]string{"north": "web:1"})
	e.awaitCondition("shop", applications.ConditionDrifted, metav1.ConditionFalse, "")
	// What the application does not set is not drift.
	_, err := e.client.AppsV1().Deployments(e.namespace).Patch(t.Context(), "web-"+e.group("north"), types.MergePatchType, []byte(`{"spec":{"minReadySeconds":3}}`), metav1.PatchOptions{})
	kit.Must(t, err)
	kit.Must(t, e.client.CoreV1().Services(e.namespace).Delete(t.Context(), "web", metav1.DeleteOptions{}))
	kit.Succeeds(t, changeTimeout, func() error {
		_, err := e.client.CoreV1().Services(e.namespace).Get(t.Context(), "web", metav1.GetOptions{})
		return err
	})
	e.awaitCondition("shop", applications.ConditionDrifted, metav1.ConditionFalse, "")
}

func TestController_TargetsByLabelsOfGroups(t *testing.T) {
	e := newEnv(t)
	e.createGroup("north", map[string]string{"region": e.namespace}, map[string]string{"city": "Oslo"})
	e.startOwner()
	config := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"site","annotations":{"frond.io/multiply":"true"}},"data":{"city":"${group.annotations.city}"}}`
	e.put("shop", map[string]string{names.AnnotationTargetGroups: "region=" + e.namespace}, append(manifests("1")[:1], config))
	e.awaitImages(map[string]string{"north": "web:1"})
	e.createGroup("south", map[string]string{"region": e.namespace}, map[string]string{"city": "Rome"})
	e.awaitImages(map[string]string{"north": "web:1", "south": "web:1"})
	kit.Succeeds(t, changeTimeout, func() error {
		o, err := e.client.CoreV1().ConfigMaps(e.namespace).Get(t.Context(), "site-"+e.group("south"), metav1.GetOptions{})
		if err != nil || o.Data["city"] != "Rome" {
			return fmt.Errorf("%v, %w", o.Data, err)
		}
		return nil
	})
	e.annotate("shop", names.AnnotationTargetGroups, "region in (")
	e.awaitCondition("shop", applications.ConditionValid, metav1.ConditionFalse, "is no label selector")
	if got := len(e.images()); got != 2 {
		t.Errorf("%d Deployments are left", got)
	}
}

const rolloutPlan = `{"steps":[{"groups":["CANARY"]},{"percent":50}]}`

// TestController_RolloutOverGroups: each step waits for the pods of the one before. Two replicas take turns, and one stops in the middle.
func TestController_RolloutOverGroups(t *testing.T) {
	e := newEnv(t)
	first, second := newOwnership(e.namespace, true), newOwnership(e.namespace, false)
	stopFirst := e.start(first)
	e.start(second)
	plan := map[string]string{names.AnnotationRollout: strings.Replace(rolloutPlan, "CANARY", e.group("d"), 1)}
	groups := []string{"a", "b", "c", "d"}
	e.put("shop", nil, manifests("1"), groups...)
	e.awaitImages(map[string]string{"a": "web:1", "b": "web:1", "c": "web:1", "d": "web:1"})
	for _, g := range groups {
		e.makeReady(g, 2)
	}
	e.awaitCondition("shop", applications.ConditionReady, metav1.ConditionTrue, "8 of 8 pods")

	began := time.Now()
	e.put("shop", plan, manifests("2"), groups...)
	e.awaitImages(map[string]string{"a": "web:1", "b": "web:1", "c": "web:1", "d": "web:2"})
	e.makeReady("d", 1)
	e.awaitRollout(apps.RolloutProgressing, 1, "1 of 2 pods")
	first.set(false)
	second.set(true)
	e.makeReady("d", 2)
	e.awaitImages(map[string]string{"a": "web:2", "b": "web:1", "c": "web:1", "d": "web:2"})
	stopFirst()
	e.annotate("shop", names.AnnotationRolloutPaused, "true")
	e.awaitRollout(apps.RolloutPaused, 2, "paused")
	e.makeReady("a", 2)
	e.put("unrelated", nil, nil) // passes through the queue after the pods' event
	e.awaitCondition("unrelated", applications.ConditionApplied, metav1.ConditionTrue, "")
	e.awaitImages(map[string]string{"a": "web:2", "b": "web:1", "c": "web:1", "d": "web:2"})
	if data := e.configData("settings"); data != "1" {
		t.Errorf("the ConfigMap of all groups is of version %s in the middle of the rollout", data)
	}
	e.annotate("shop", names.AnnotationRolloutPaused, "false")
	e.awaitImages(map[string]string{"a": "web:2", "b": "web:2", "c": "web:2", "d": "web:2"})
	e.makeReady("b", 2)
	e.makeReady("c", 2)
	e.awaitRollout(apps.RolloutCompleted, 3, "")
	kit.Succeeds(t, changeTimeout, func() error {
		if data := e.configData("settings"); data != "2" {
			return fmt.Errorf("the ConfigMap is of version %s after the rollout", data)
		}
		return nil
	})
	applied := map[string]int{}
	for _, write := range e.writes(began) {
		if name, isDeployment := strings.CutPrefix(write, "patch /apis/apps/v1/namespaces/"+e.namespace+"/deployments/"); isDeployment {
			name, query, _ := strings.Cut(name, "?")
			if !strings.Contains(query, "dryRun") {
				applied[name]++
			}
		}
	}
	for _, g := range groups {
		if n := applied["web-"+e.group(g)]; n != 1 {
			t.Errorf("group %s was written %d times for one rollout", g, n)
		}
	}
	e.put("shop", nil, manifests("1"), groups...) // back to a revision that exists
	e.awaitImages(map[string]string{"a": "web:2", "b": "web:2", "c": "web:2", "d": "web:1"})
	list, err := e.client.AppsV1().ControllerRevisions(e.namespace).List(t.Context(), metav1.ListOptions{LabelSelector: rollout.LabelApplication + "=shop"})
	kit.Must(t, err)
	if len(list.Items) != 2 {
		t.Errorf("%d revisions", len(list.Items))
	}
}

func (e *env) configData(name string) string {
	e.Helper()
	o, err := e.client.CoreV1().ConfigMaps(e.namespace).Get(e.Context(), name, metav1.GetOptions{})
	kit.Must(e, err)
	return o.Data["version"]
}

func (e *env) awaitRollout(phase apps.RolloutPhase, step int32, text string) {
	e.Helper()
	kit.Succeeds(e, changeTimeout, func() error {
		s := e.get("shop").Status.Rollout
		if s == nil || s.Phase != phase || s.Step != step || !strings.Contains(s.Message, text) {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// TestController_BadPlanGivesNobodyAnything: a plan that cannot be read must not become "all at once".
func TestController_BadPlanGivesNobodyAnything(t *testing.T) {
	e := newEnv(t)
	e.startOwner()
	e.put("shop", nil, manifests("1"), "a", "b")
	e.awaitImages(map[string]string{"a": "web:1", "b": "web:1"})
	e.put("shop", map[string]string{names.AnnotationRollout: `{"steps":[{"percent":0}]}`}, manifests("2"), "a", "b")
	e.awaitCondition("shop", applications.ConditionValid, metav1.ConditionFalse, "steps[0].percent is 0")
	if images := e.images(); images["a"] != "web:1" || images["b"] != "web:1" {
		t.Errorf("images %v", images)
	}
}
