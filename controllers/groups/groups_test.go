package groups_test

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
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/apps"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers/groups"
	"github.com/frond-edge/frond/controllers/groups/membership"
	"github.com/frond-edge/frond/controllers/podcache"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// shared creates the service accounts that pods need, and the status of PodDisruptionBudgets.
var shared = kubetest.Shared{Options: kubetest.Options{Controllers: []string{"serviceaccount-controller", "disruption-controller"}}}

func TestMain(m *testing.M) { shared.Verify(m) }

// changeTimeout is how long a change may take on a busy machine.
const changeTimeout = 2 * time.Minute

// half is an Ownership of the nodes and groups for which owns is true.
type half struct{ owns func(string) bool }

func (h half) Owns(name string) bool  { return h.owns(name) }
func (half) Term(string) uint64       { return 1 }
func (half) Changed() <-chan struct{} { return nil }
func (half) LeaseValid() bool         { return true }

// env is a cluster with controllers. The names of its Nodes and groups begin with the namespace.
type env struct {
	*testing.T
	client    kubernetes.Interface
	kinds     dynamic.Interface
	namespace string

	mu     sync.Mutex
	events []string // guarded by mu
}

func newEnv(t *testing.T) *env {
	t.Helper()
	cluster := shared.Cluster(t)
	kinds, err := dynamic.NewForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	e := &env{T: t, client: cluster.Client(t), kinds: kinds, namespace: cluster.Namespace(t)}
	e.installKind()
	return e
}

func (e *env) installKind() {
	e.Helper()
	all, err := crd.Definitions()
	if err != nil {
		e.Fatal(err)
	}
	definitions := e.kinds.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	for _, data := range all {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(data, &o.Object); err != nil {
			e.Fatal(err)
		}
		if o.GetName() != apps.NodeGroupsResource+"."+apps.Group {
			continue
		}
		if _, err := definitions.Create(e.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			e.Fatal(err)
		}
	}
	kit.Succeeds(e, changeTimeout, func() error {
		_, err := e.groups().List(e.Context(), metav1.ListOptions{})
		return err
	})
}

// start runs a replica that owns what owns says, until the test ends or stop is called. Only a Node or group of this test is owned.
func (e *env) start(guard groups.Guard, owns func(string) bool) (view *membership.View, stop func()) {
	e.Helper()
	return e.startAs("frond-groups-test", groups.Rules(), guard, owns)
}

// startAs is start with the rights of another user.
func (e *env) startAs(user string, rules []rbacv1.PolicyRule, guard groups.Guard, owns func(string) bool) (view *membership.View, stop func()) {
	e.Helper()
	config := shared.Cluster(e).ConfigWithRules(e, user, rules)
	objects, err := podcache.New(config)
	if err != nil {
		e.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		e.Fatal(err)
	}
	groupClient, err := membership.NewGroupClient(config)
	if err != nil {
		e.Fatal(err)
	}
	log := zaptest.NewLogger(e)
	view = membership.New(objects, membership.ListGroups(groupClient), log)
	mine := func(name string) bool {
		return strings.HasPrefix(strings.TrimPrefix(name, "nodegroup/"), e.namespace) && owns(strings.TrimPrefix(name, "nodegroup/"))
	}
	warn := func(about corev1.ObjectReference, reason, message string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.events = append(e.events, reason+" "+about.Kind+" "+about.Name+": "+message)
	}
	controller := groups.New(guard, client, groupClient, objects, view, half{mine}, warn, prometheus.NewRegistry(), log)
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
	return view, stop
}

func all(string) bool { return true }

func (e *env) groups() dynamic.ResourceInterface {
	return e.kinds.Resource(apps.GroupVersion().WithResource(apps.NodeGroupsResource))
}

func (e *env) name(suffix string) string { return e.namespace + "-" + suffix }

func (e *env) createNode(suffix string, labels map[string]string) string {
	e.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: e.name(suffix), Labels: labels}}
	if _, err := e.client.CoreV1().Nodes().Create(e.Context(), node, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		_ = e.client.CoreV1().Nodes().Delete(context.WithoutCancel(e.Context()), node.Name, metav1.DeleteOptions{})
	})
	return node.Name
}

func (e *env) createGroup(suffix string, spec apps.NodeGroupSpec) string {
	e.Helper()
	o, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&apps.NodeGroup{
		TypeMeta:   metav1.TypeMeta{APIVersion: apps.GroupVersion().String(), Kind: apps.NodeGroupKind},
		ObjectMeta: metav1.ObjectMeta{Name: e.name(suffix)}, Spec: spec,
	})
	if err != nil {
		e.Fatal(err)
	}
	if _, err := e.groups().Create(e.Context(), &unstructured.Unstructured{Object: o}, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		ctx := context.WithoutCancel(e.Context())
		_ = e.groups().Delete(ctx, e.name(suffix), metav1.DeleteOptions{})
		_, _ = e.groups().Patch(ctx, e.name(suffix), types.MergePatchType, []byte(`{"metadata":{"finalizers":[]}}`), metav1.PatchOptions{})
	})
	return e.name(suffix)
}

func (e *env) patchGroup(name, patch string) {
	e.Helper()
	if _, err := e.groups().Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		e.Fatal(err)
	}
}

func (e *env) patchNode(name, patch string, subresources ...string) {
	e.Helper()
	if _, err := e.client.CoreV1().Nodes().Patch(e.Context(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		e.Fatal(err)
	}
}

func (e *env) group(name string) (*apps.NodeGroup, error) {
	o, err := e.groups().Get(e.Context(), name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	g := &apps.NodeGroup{}
	return g, runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, g)
}

// createPod creates a pod that is bound to a node, and demands a group unless that is "".
func (e *env) createPod(name, node, group string, change ...func(*corev1.Pod)) {
	e.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pod": name}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if group != "" {
		pod.Spec.NodeSelector = map[string]string{names.LabelNodeGroup: group}
	}
	for _, do := range change {
		do(pod)
	}
	kit.Succeeds(e, changeTimeout, func() error { // until the namespace has its service account
		_, err := e.client.CoreV1().Pods(e.namespace).Create(e.Context(), pod, metav1.CreateOptions{})
		return err
	})
}

// evicted returns a check that a pod is gone or ending.
func (e *env) evicted(name string) func() error {
	return func() error {
		pod, err := e.client.CoreV1().Pods(e.namespace).Get(e.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
			return nil
		}
		return errors.Join(fmt.Errorf("pod %s stays", name), err)
	}
}

// mustStay fails the test if a pod is gone or ending.
func (e *env) mustStay(pods ...string) {
	e.Helper()
	for _, name := range pods {
		if e.evicted(name)() == nil {
			e.Errorf("pod %s was evicted", name)
		}
	}
}

// labelled returns a check of a Node's group and zone; "" is no label.
func (e *env) labelled(node, group, zone string) func() error {
	return func() error {
		o, err := e.client.CoreV1().Nodes().Get(e.Context(), node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		_, has := o.Labels[names.LabelNodeGroup]
		_, zoned := o.Labels[corev1.LabelTopologyZone]
		if o.Labels[names.LabelNodeGroup] != group || o.Labels[corev1.LabelTopologyZone] != zone || has != (group != "") || zoned != (zone != "") {
			return fmt.Errorf("node %s has labels %v, want group %q and zone %q", node, o.Labels, group, zone)
		}
		return nil
	}
}

// hasStatus returns a check of the list of Nodes in a group's status; each of them is NODE/READY/SELECTION/REASON.
func (e *env) hasStatus(name string, want ...string) func() error {
	return func() error {
		g, err := e.group(name)
		if err != nil {
			return err
		}
		var got []string
		for _, s := range g.Status.NodeStatuses {
			got = append(got, strings.TrimPrefix(s.NodeName, e.namespace+"-")+"/"+s.ReadyStatus+"/"+s.SelectionStatus+"/"+strings.ReplaceAll(s.SelectionStatusReason, e.namespace+"-", ""))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("status of %s (-want +got):\n%s", name, diff)
		}
		return nil
	}
}

// hasCondition returns a check of a condition's status and reason.
func (e *env) hasCondition(group, kind string, status metav1.ConditionStatus, reason string) func() error {
	return func() error {
		g, err := e.group(group)
		if err != nil {
			return err
		}
		if c := meta.FindStatusCondition(g.Status.Conditions, kind); c == nil || c.Status != status || c.Reason != reason {
			return fmt.Errorf("condition %s of %s is %+v", kind, group, c)
		}
		return nil
	}
}

func specPatch(spec apps.NodeGroupSpec) string {
	text, _ := json.Marshal(map[string]any{"spec": map[string]any{"nodes": spec.Nodes, "matchLabels": spec.MatchLabels, "topologyEnabled": spec.TopologyEnabled}})
	return string(text)
}

// TestController_LabelsAndStatus follows a group from its creation to its deletion, with a conflict that ends.
func TestController_LabelsAndStatus(t *testing.T) {
	e := newEnv(t)
	e.start(groups.Guard{}, all)
	a, b := e.createNode("a", nil), e.createNode("b", map[string]string{"site": e.name("north"), corev1.LabelTopologyZone: "provider"})
	north := e.createGroup("north", apps.NodeGroupSpec{Nodes: []string{a, e.name("x")}, MatchLabels: map[string]string{"site": e.name("north")}, TopologyEnabled: true})
	kit.Succeeds(t, changeTimeout, e.labelled(a, north, north))
	kit.Succeeds(t, changeTimeout, e.labelled(b, north, "provider"))
	kit.Succeeds(t, changeTimeout, e.hasStatus(north, "a/Unknown/Succeeded/", "b/Unknown/Succeeded/node b keeps its zone provider, which is not the group's", "x/Unknown/Failed/node does not exist"))
	if g, err := e.group(north); err != nil || !slices.Equal(g.Finalizers, []string{names.FinalizerNodeGroup}) || g.Status.Selected != 3 || g.Status.Members != 2 || g.Status.Ready != 0 {
		t.Errorf("group: %+v, %v", g, err)
	}
	kit.Succeeds(t, changeTimeout, e.hasCondition(north, names.ConditionAllSelected, metav1.ConditionFalse, names.ReasonNodesNotSelected))

	e.patchNode(a, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, "status")
	e.patchNode(b, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "status")
	kit.Succeeds(t, changeTimeout, e.hasStatus(north, "a/Ready/Succeeded/", "b/NotReady/Succeeded/node b keeps its zone provider, which is not the group's", "x/Unknown/Failed/node does not exist"))

	// What somebody else writes over the label is put right, also in a Node of no group.
	c := e.createNode("c", nil)
	e.patchNode(a, `{"metadata":{"labels":{"apps.kubeedge.io/belonging-to":"other"}}}`)
	e.patchNode(c, fmt.Sprintf(`{"metadata":{"labels":{"apps.kubeedge.io/belonging-to":%q}}}`, north))
	kit.Succeeds(t, changeTimeout, e.labelled(a, north, north))
	kit.Succeeds(t, changeTimeout, e.labelled(c, "", ""))

	// The loser gets the Node as soon as the holder lets go, with no touch of its own.
	south := e.createGroup("south", apps.NodeGroupSpec{Nodes: []string{a}})
	kit.Succeeds(t, changeTimeout, e.hasStatus(south, "a/Ready/Failed/node a has already belonged to NodeGroup north"))
	e.patchGroup(north, specPatch(apps.NodeGroupSpec{MatchLabels: map[string]string{"site": e.name("north")}}))
	kit.Succeeds(t, changeTimeout, e.labelled(a, south, ""))
	kit.Succeeds(t, changeTimeout, e.labelled(b, north, "provider"))
	kit.Succeeds(t, changeTimeout, e.hasStatus(south, "a/Ready/Succeeded/"))
	kit.Succeeds(t, changeTimeout, e.hasCondition(north, names.ConditionAllSelected, metav1.ConditionTrue, names.ReasonAllMembers))

	if err := e.groups().Delete(t.Context(), north, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, changeTimeout, func() error {
		if _, err := e.group(north); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the group is there: %w", err)
		}
		return nil
	})
	kit.Succeeds(t, changeTimeout, e.labelled(b, "", "provider"))
}

// TestController_BadInput: conditions and events name what is wrong, and labels that a gateway sets select nothing.
func TestController_BadInput(t *testing.T) {
	e := newEnv(t)
	e.start(groups.Guard{}, all)
	node := e.createNode("a", map[string]string{corev1.LabelArchStable: "arm64"})
	arm := e.createGroup("arm", apps.NodeGroupSpec{MatchLabels: map[string]string{corev1.LabelArchStable: "arm64"}})
	empty := e.createGroup("empty", apps.NodeGroupSpec{MatchLabels: map[string]string{}})
	kit.Succeeds(t, changeTimeout, e.hasCondition(arm, names.ConditionSpecAccepted, metav1.ConditionFalse, names.ReasonUntrustedLabels))
	kit.Succeeds(t, changeTimeout, e.hasCondition(empty, names.ConditionSpecAccepted, metav1.ConditionTrue, names.ReasonAccepted))
	for _, name := range []string{arm, empty} {
		if err := e.hasStatus(name)(); err != nil {
			t.Error(err)
		}
	}
	windows := func(text string) {
		e.patchGroup(empty, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, names.AnnotationMaintenanceWindows, text))
	}
	windows(`[{"schedule":"0 2 * * 6","duration":"soon"}]`)
	kit.Succeeds(t, changeTimeout, e.hasCondition(empty, names.ConditionWindowsParsed, metav1.ConditionFalse, names.ReasonNotParsed))
	windows(`[{"schedule":"0 2 * * 6","duration":"3h"}]`)
	kit.Succeeds(t, changeTimeout, e.hasCondition(empty, names.ConditionWindowsParsed, metav1.ConditionTrue, names.ReasonParsed))
	long := e.createGroup(strings.Repeat("x", 64), apps.NodeGroupSpec{Nodes: []string{node}})
	kit.Succeeds(t, changeTimeout, e.hasCondition(long, names.ConditionSpecAccepted, metav1.ConditionFalse, names.ReasonNameTooLong))
	kit.Succeeds(t, changeTimeout, e.hasStatus(long, "a/Unknown/Succeeded/"))
	if err := e.labelled(node, "", "")(); err != nil {
		t.Error(err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, want := range []string{
		"GroupSpecNotAccepted NodeGroup " + arm + ": matchLabels selects no Node: a gateway sets kubernetes.io/arch",
		`MaintenanceWindowsNotParsed NodeGroup ` + empty + `: annotation frond.io/maintenance-windows: [0]: duration: "soon"`,
		"GroupSpecNotAccepted NodeGroup " + long,
	} {
		if n := len(slices.DeleteFunc(slices.Clone(e.events), func(event string) bool { return !strings.HasPrefix(event, want) })); n != 1 {
			t.Errorf("%d events %q among %q", n, want, e.events)
		}
	}
}

// TestController_EvictsWhatLeft: the pods of a group leave with the Node, but for those of DaemonSets, those that demand nothing, and those that
// a disruption budget protects.
func TestController_EvictsWhatLeft(t *testing.T) {
	e := newEnv(t)
	e.start(groups.Guard{Share: 0.5, Minimum: 5}, all)
	a, b := e.createNode("a", nil), e.createNode("b", nil)
	north := e.createGroup("north", apps.NodeGroupSpec{Nodes: []string{a, b}})
	kit.Succeeds(t, changeTimeout, e.labelled(a, north, ""))
	e.createPod("mine", a, north)
	e.createPod("stays-on-b", b, north)
	e.createPod("demands-nothing", a, "")
	e.createPod("of-a-daemonset", a, north, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "1", Controller: new(true)}}
	})
	e.createPod("protected", a, north)
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "none"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: new(intstr.FromInt32(0)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"pod": "protected"}},
	}}
	if _, err := e.client.PolicyV1().PodDisruptionBudgets(e.namespace).Create(t.Context(), budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, changeTimeout, func() error { // pending pods may be evicted whatever the budget says
		_, err := e.client.CoreV1().Pods(e.namespace).Patch(t.Context(), "protected", types.MergePatchType,
			[]byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`), metav1.PatchOptions{}, "status")
		if err != nil {
			return err
		}
		now, err := e.client.PolicyV1().PodDisruptionBudgets(e.namespace).Get(t.Context(), "none", metav1.GetOptions{})
		if err == nil && now.Status.ObservedGeneration == 0 {
			err = errors.New("the budget has no status yet")
		}
		return err
	})
	e.patchGroup(north, specPatch(apps.NodeGroupSpec{Nodes: []string{b}}))
	kit.Succeeds(t, changeTimeout, e.evicted("mine"))
	kit.Succeeds(t, changeTimeout, e.hasCondition(north, names.ConditionEvictionsHeld, metav1.ConditionTrue, names.ReasonDisruptionBudget))
	e.mustStay("stays-on-b", "demands-nothing", "of-a-daemonset", "protected")
	if err := e.client.PolicyV1().PodDisruptionBudgets(e.namespace).Delete(t.Context(), "none", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, changeTimeout, e.evicted("protected"))
	kit.Succeeds(t, changeTimeout, e.hasCondition(north, names.ConditionEvictionsHeld, metav1.ConditionFalse, names.ReasonNothingHeld))
}

// TestController_RefusedSelectorEvictsNothing: an edit that makes the labels of a group such that they must not decide is a mistake. Its Nodes keep the label,
// and their pods; what was there is judged again once the labels are good.
func TestController_RefusedSelectorEvictsNothing(t *testing.T) {
	e := newEnv(t)
	e.start(groups.Guard{}, all)
	site := map[string]string{"site": e.namespace}
	a, b := e.createNode("a", site), e.createNode("b", site)
	north := e.createGroup("north", apps.NodeGroupSpec{MatchLabels: site})
	kit.Succeeds(t, changeTimeout, e.labelled(a, north, ""))
	kit.Succeeds(t, changeTimeout, e.labelled(b, north, ""))
	e.createPod("mine", a, north)
	e.patchGroup(north, `{"spec":{"matchLabels":{"kubernetes.io/arch":"arm64"}}}`)
	kit.Succeeds(t, changeTimeout, e.hasCondition(north, names.ConditionSpecAccepted, metav1.ConditionFalse, names.ReasonUntrustedLabels))
	e.patchNode(b, `{"metadata":{"labels":{"touched":"yes"}}}`) // another pass over the Nodes
	stray := e.createNode("c", map[string]string{names.LabelNodeGroup: "nobody"})
	kit.Succeeds(t, changeTimeout, e.labelled(stray, "", "")) // which is written after the pass
	for _, node := range []string{a, b} {
		if err := e.labelled(node, north, "")(); err != nil {
			t.Error(err)
		}
	}
	e.mustStay("mine")
	e.patchGroup(north, `{"spec":{"matchLabels":null,"nodes":["`+b+`"]}}`)
	kit.Succeeds(t, changeTimeout, e.evicted("mine"))
	kit.Succeeds(t, changeTimeout, e.labelled(a, "", ""))
}

// TestController_HoldsMassLeave: where most Nodes lose the label that selects them, their pods stay until an operator confirms, also under a
// replica that starts meanwhile; the deletion of a group is no accident.
func TestController_HoldsMassLeave(t *testing.T) {
	e := newEnv(t)
	guard := groups.Guard{Share: 0.5, Minimum: 3}
	_, stop := e.start(guard, all)
	var nodes, pods []string
	for i := range 4 {
		node := e.createNode(fmt.Sprint("n", i), map[string]string{"site": e.name("north")})
		nodes = append(nodes, node)
	}
	north := e.createGroup("north", apps.NodeGroupSpec{MatchLabels: map[string]string{"site": e.name("north")}})
	for i, node := range nodes {
		kit.Succeeds(t, changeTimeout, e.labelled(node, north, ""))
		pods = append(pods, fmt.Sprint("pod-", i))
		e.createPod(pods[i], node, north)
	}
	e.patchGroup(north, specPatch(apps.NodeGroupSpec{MatchLabels: map[string]string{"site": "mistyped"}}))
	kit.Succeeds(t, changeTimeout, e.hasCondition(north, names.ConditionEvictionsHeld, metav1.ConditionTrue, names.ReasonMassLeave))
	e.mustStay(pods...)
	stop()
	e.start(guard, all)
	for _, node := range nodes {
		kit.Succeeds(t, changeTimeout, e.labelled(node, "", ""))
	}
	// The Nodes are back: nothing was lost.
	e.patchGroup(north, specPatch(apps.NodeGroupSpec{MatchLabels: map[string]string{"site": e.name("north")}}))
	kit.Succeeds(t, changeTimeout, e.hasCondition(north, names.ConditionEvictionsHeld, metav1.ConditionFalse, names.ReasonNothingHeld))
	e.mustStay(pods...)
	e.patchGroup(north, specPatch(apps.NodeGroupSpec{Nodes: nodes[:1]})) // the labels stay in the patch's merge, and are replaced
	e.patchGroup(north, `{"spec":{"matchLabels":null}}`)
	kit.Succeeds(t, changeTimeout, e.hasCondition(north, names.ConditionEvictionsHeld, metav1.ConditionTrue, names.ReasonMassLeave))
	g, err := e.group(north)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(meta.FindStatusCondition(g.Status.Conditions, names.ConditionEvictionsHeld).Message, names.AnnotationConfirmEvictions+"=")
	token, _, _ := strings.Cut(rest, "`")
	e.patchGroup(north, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, names.AnnotationConfirmEvictions, token))
	for _, pod := range pods[1:] {
		kit.Succeeds(t, changeTimeout, e.evicted(pod))
	}
	e.mustStay(pods[0])
	if err := e.groups().Delete(t.Context(), north, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, changeTimeout, e.evicted(pods[0]))
	kit.Succeeds(t, changeTimeout, func() error {
		if _, err := e.group(north); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the group is there: %w", err)
		}
		return nil
	})
}

// TestController_IdleWritesNothing: two replicas settle, and then make no request that writes; a third that takes over makes none either.
func TestController_IdleWritesNothing(t *testing.T) {
	e := newEnv(t)
	even := func(name string) bool { return len(name)%2 == 0 }
	_, stop := e.start(groups.Guard{}, even)
	e.start(groups.Guard{}, func(name string) bool { return !even(name) })
	nodes := make([]string, 6)
	for i := range nodes {
		nodes[i] = e.createNode(strings.Repeat("n", i+1), nil)
	}
	north := e.createGroup("north", apps.NodeGroupSpec{Nodes: nodes[:4], TopologyEnabled: true})
	kit.Succeeds(t, changeTimeout, e.hasCondition(north, names.ConditionAllSelected, metav1.ConditionTrue, names.ReasonAllMembers)) // it holds them
	east := e.createGroup("east", apps.NodeGroupSpec{Nodes: nodes[3:]})
	e.createPod("in-place", nodes[0], north)
	for i, node := range nodes {
		group, zone := north, north
		if i > 3 {
			group, zone = east, ""
		}
		kit.Succeeds(t, changeTimeout, e.labelled(node, group, zone))
	}
	kit.Succeeds(t, changeTimeout, e.hasCondition(east, names.ConditionAllSelected, metav1.ConditionFalse, names.ReasonNodesNotSelected))
	mine := func(after time.Time) []kubetest.AuditEntry {
		return shared.Cluster(t).Audit(t, after, func(a kubetest.AuditEntry) bool {
			return a.User.Username == "frond-groups-test" && !slices.Contains([]string{"get", "list", "watch"}, a.Verb)
		})
	}
	stop()
	began := time.Now()
	view, _ := e.start(groups.Guard{}, all)
	kit.Succeeds(t, changeTimeout, func() error {
		if !view.Ready() {
			return errors.New("not ready")
		}
		return nil
	})
	// A change that decides nothing, then one that does, which proves that the first was handled.
	e.patchNode(nodes[0], `{"metadata":{"annotations":{"note":"x"}}}`)
	e.patchGroup(east, `{"metadata":{"labels":{"note":"x"}}}`)
	last := e.createNode("last", nil)
	e.patchGroup(east, specPatch(apps.NodeGroupSpec{Nodes: append(slices.Clone(nodes[3:]), last)}))
	kit.Succeeds(t, changeTimeout, e.labelled(last, east, ""))
	kit.Succeeds(t, changeTimeout, func() error {
		if g, err := e.group(east); err != nil || g.Status.Members != 3 {
			return fmt.Errorf("%+v, %w", g, err)
		}
		return nil
	})
	for _, w := range mine(began) {
		if name := w.Object.Name; name != last && name != east {
			t.Errorf("written: %s %s", w.Verb, name)
		}
	}
}

// TestView_KnowsNothingUntilRead: a replica that may not read the groups is not ready and changes nothing; with the right, it knows all.
func TestView_KnowsNothingUntilRead(t *testing.T) {
	e := newEnv(t)
	node := e.createNode("a", nil)
	north := e.createGroup("north", apps.NodeGroupSpec{Nodes: []string{node}})
	e.patchNode(node, `{"metadata":{"labels":{"apps.kubeedge.io/belonging-to":"unknown"}}}`)
	user := "old-" + e.namespace
	older := slices.DeleteFunc(groups.Rules(), func(r rbacv1.PolicyRule) bool { return slices.Contains(r.APIGroups, apps.Group) })
	view, _ := e.startAs(user, older, groups.Guard{}, all)
	began := time.Now()
	kit.Succeeds(t, changeTimeout, func() error { // it has asked, and was refused
		refused := shared.Cluster(t).Audit(t, began.Add(-time.Minute), func(a kubetest.AuditEntry) bool {
			return a.User.Username == user && a.Object.Resource == apps.NodeGroupsResource && a.Response.Code == 403
		})
		if len(refused) == 0 {
			return errors.New("no request was refused")
		}
		return nil
	})
	if view.Ready() {
		t.Error("ready without the groups")
	}
	if err := e.labelled(node, "unknown", "")(); err != nil {
		t.Error(err)
	}
	role, err := e.client.RbacV1().ClusterRoles().Get(t.Context(), user, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	role.Rules = groups.Rules()
	if _, err := e.client.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, changeTimeout, e.labelled(node, north, ""))
	if group, member := view.GroupOf(node); !member || group != north {
		t.Errorf("the view has %q %t", group, member)
	}
}

// TestView_WindowOf: the windows of a group follow its annotation; a bad one keeps the group closed.
func TestView_WindowOf(t *testing.T) {
	e := newEnv(t)
	view, _ := e.start(groups.Guard{}, all)
	changed := make(chan struct{}, 1)
	defer view.Subscribe(func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})()
	north := e.createGroup("north", apps.NodeGroupSpec{})
	for _, tt := range []struct {
		windows string
		open    bool
		next    bool
		fault   bool
	}{
		{`null`, true, false, false},
		{`"[{\"schedule\":\"0 0 29 2 *\",\"duration\":\"1m\"}]"`, false, true, false},
		{`"[{\"schedule\":\"* * * * *\",\"duration\":\"1h\"}]"`, true, false, false},
		{`"tomorrow"`, false, false, true},
		{`null`, true, false, false},
	} {
		e.patchGroup(north, fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, names.AnnotationMaintenanceWindows, tt.windows))
		limit := time.After(changeTimeout)
		for {
			open, next := view.WindowOf(north)
			if open == tt.open && next.IsZero() != tt.next && (view.WindowFault(north) != nil) == tt.fault {
				break
			}
			select {
			case <-changed: // each change is told, so no other wait is needed
			case <-limit:
				t.Fatalf("%s: open %t, next %s, fault %v", tt.windows, open, next, view.WindowFault(north))
			}
		}
	}
	if open, next := view.WindowOf(e.name("none")); !open || !next.IsZero() {
		t.Errorf("a group that does not exist: open %t, next %s", open, next)
	}
}
