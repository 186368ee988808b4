package main

import (
	"context"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

// policyTimeout bounds the time until the apiserver enforces a new policy; it reloads them every second.
const policyTimeout = 30 * time.Second

// dryRun runs admission without a change.
var dryRun = []string{metav1.DryRunAll}

// excludeGateways is a required affinity with one term for each argument; the argument says whether the term excludes gateways.
func excludeGateways(terms ...bool) *corev1.Affinity {
	selector := &corev1.NodeSelector{}
	for _, edge := range terms {
		term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpExists}}}
		if edge {
			term.MatchExpressions = append(term.MatchExpressions, corev1.NodeSelectorRequirement{Key: names.LabelEdge, Operator: corev1.NodeSelectorOpDoesNotExist})
		}
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term)
	}
	return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: selector}}
}

// policyTest is a cluster with the policies in force, and a namespace of each kind.
type policyTest struct {
	*installedCluster
	cluster              *kubetest.Cluster
	protected, elsewhere string
}

func newPolicyTest(t *testing.T) policyTest {
	t.Helper()
	p := policyTest{installedCluster: newInstalledCluster(t), cluster: sharedCluster.Cluster(t)}
	p.mustRun("init", "--hub-servers", "1")
	p.protected, p.elsewhere = p.cluster.Namespace(t), p.cluster.Namespace(t)
	for _, ns := range []string{names.Namespace, p.protected, p.elsewhere} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if _, err := p.client.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	patch := []byte(`{"metadata":{"labels":{"` + names.LabelProtected + `":"` + names.Protected + `"}}}`)
	if _, err := p.client.CoreV1().Namespaces().Patch(t.Context(), p.protected, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Succeeds(t, policyTimeout, func() error {
		for _, ns := range []string{names.Namespace, p.protected} {
			if err := checkRefusal(p.tryCreate(p.client, p.probePod(ns)), "must not run on gateways"); err != nil {
				return err
			}
			if err := checkRefusal(p.tryBind(p.client, ns, "missing"), "only the scheduler"); err != nil {
				return err
			}
			if err := checkRefusal(p.tryDaemonSet(ns, nil), "must not run on gateways"); err != nil {
				return err
			}
		}
		return checkRefusal(p.tryDelete("secrets", names.Namespace, "frond-ca"), "confirm it first")
	})
	return p
}

// checkRefusal returns an error unless err is the refusal with these words, or nil where none is expected.
func checkRefusal(err error, words string) error {
	switch {
	case words == "" && err != nil:
		return err
	case words != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), words)):
		return apierrors.NewBadRequest("want a refusal with " + words + ", got " + errorText(err))
	}
	return nil
}

func errorText(err error) string {
	if err == nil {
		return "none"
	}
	return err.Error()
}

func (p policyTest) probePod(ns string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "probe"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	}
}

func (p policyTest) tryCreate(client kubernetes.Interface, pod *corev1.Pod) error {
	_, err := client.CoreV1().Pods(pod.Namespace).Create(p.t.Context(), pod, metav1.CreateOptions{DryRun: dryRun})
	return err
}

func (p policyTest) tryBind(client kubernetes.Interface, ns, pod string) error {
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: pod}, Target: corev1.ObjectReference{Kind: "Node", Name: "gw-1"}}
	return client.CoreV1().Pods(ns).Bind(p.t.Context(), binding, metav1.CreateOptions{DryRun: dryRun})
}

func (p policyTest) tryDaemonSet(ns string, affinity *corev1.Affinity) error {
	labels := map[string]string{"app": "probe"}
	set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "probe"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: p.probePod(ns).Spec},
	}}
	set.Spec.Template.Spec.Affinity = affinity
	_, err := p.client.AppsV1().DaemonSets(ns).Create(p.t.Context(), set, metav1.CreateOptions{DryRun: dryRun})
	return err
}

// tryDelete tries whether an object could be deleted; without a name, all objects of the resource.
func (p policyTest) tryDelete(resource, ns, name string) error {
	options, at := metav1.DeleteOptions{DryRun: dryRun}, p.dynamicResource(resource, ns)
	if name == "" {
		return at.DeleteCollection(p.t.Context(), options, metav1.ListOptions{})
	}
	return at.Delete(p.t.Context(), name, options)
}

// clientAs returns a client of another user.
func (p policyTest) clientAs(user string, groups ...string) kubernetes.Interface {
	p.t.Helper()
	client, err := kubernetes.NewForConfig(p.cluster.ConfigFor(user, groups...))
	if err != nil {
		p.t.Fatal(err)
	}
	return client
}

func TestPolicies_PodsOfProtectedNamespacesStayOffGateways(t *testing.T) {
	p := newPolicyTest(t)
	with := func(ns string, change func(*corev1.Pod)) *corev1.Pod {
		pod := p.probePod(ns)
		change(pod)
		return pod
	}
	mirror := func(pod *corev1.Pod) {
		pod.Spec.NodeName = "gw-1"
		pod.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	}
	for _, ns := range []string{names.Namespace, p.protected} {
		for name, tt := range map[string]struct {
			err  error
			want string
		}{
			"a term that lets gateways in": {p.tryCreate(p.client, with(ns, func(pod *corev1.Pod) { pod.Spec.Affinity = excludeGateways(true, false) })), "in each term"},
			"all terms exclude gateways":   {p.tryCreate(p.client, with(ns, func(pod *corev1.Pod) { pod.Spec.Affinity = excludeGateways(true, true) })), ""},
			"a node that is named": {p.tryCreate(p.client, with(ns, func(pod *corev1.Pod) {
				pod.Spec.Affinity, pod.Spec.NodeName = excludeGateways(true), "gw-1"
			})), "names its node"},
			"a mirror pod that an administrator forges": {p.tryCreate(p.client, with(ns, mirror)), "names its node"},
			"a DaemonSet that excludes gateways":        {p.tryDaemonSet(ns, excludeGateways(true)), ""},
			"a pod of the DaemonSet controller":         {p.tryCreate(p.clientAs("system:serviceaccount:kube-system:daemon-set-controller", "system:masters"), with(ns, ofDaemonSet)), ""},
			"the same of an administrator":              {p.tryCreate(p.client, with(ns, ofDaemonSet)), "in each term"},
		} {
			if err := checkRefusal(tt.err, tt.want); err != nil {
				t.Errorf("%s in %s: %v", name, ns, err)
			}
		}
		pod, err := p.client.CoreV1().Pods(ns).Create(t.Context(), with(ns, func(pod *corev1.Pod) { pod.Spec.Affinity = excludeGateways(true) }), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		now := int64(0)
		t.Cleanup(func() {
			if err := p.client.CoreV1().Pods(ns).Delete(context.WithoutCancel(t.Context()), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
				t.Error(err)
			}
		})
		if err := checkRefusal(p.tryBind(p.client, ns, pod.Name), "frond init --scheduler kubernetes-admin"); err != nil {
			t.Errorf("an administrator binds in %s: %v", ns, err)
		}
		if err := checkRefusal(p.tryBind(p.clientAs("system:kube-scheduler"), ns, pod.Name), ""); err != nil {
			t.Errorf("the scheduler cannot bind in %s: %v", ns, err)
		}
	}
	if err := checkRefusal(p.tryCreate(p.client, with(p.elsewhere, func(pod *corev1.Pod) { pod.Spec.NodeName = "gw-1" })), ""); err != nil {
		t.Errorf("a namespace that is not protected: %v", err)
	}
	p.checkMirrors(t, with, mirror)
}

// ofDaemonSet makes a pod resemble one of the DaemonSet controller, which replaces the template's terms by a node's name.
func ofDaemonSet(pod *corev1.Pod) {
	yes := true
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: "d", UID: "u", Controller: &yes}}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{
			{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{"gw-1"}},
		}}},
	}}}
}

// checkMirrors checks static pods: the control plane of a cluster may consist of them, Frond's own namespace has none.
func (p policyTest) checkMirrors(t *testing.T, with func(string, func(*corev1.Pod)) *corev1.Pod, mirror func(*corev1.Pod)) {
	t.Helper()
	node, err := p.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gw-1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), node.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	kubelet := p.clientAs("system:node:gw-1", "system:nodes")
	for ns, want := range map[string]string{names.Namespace: "names its node", p.protected: "", p.elsewhere: ""} {
		err := p.tryCreate(kubelet, with(ns, func(pod *corev1.Pod) {
			mirror(pod)
			pod.Name = "mirror"
			yes := true
			pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &yes}}
		}))
		if err := checkRefusal(err, want); err != nil {
			t.Errorf("the mirror of a static pod in %s: %v", ns, err)
		}
	}
}

// TestPolicies_OtherSchedulers allows a named scheduler in addition to kube-scheduler.
func TestPolicies_OtherSchedulers(t *testing.T) {
	p := newPolicyTest(t)
	const own = "system:serviceaccount:kube-system:packer"
	p.mustRun("init", "--scheduler", own)
	kit.Succeeds(t, policyTimeout, func() error {
		err := p.tryBind(p.clientAs(own, "system:masters"), p.protected, "missing")
		if apierrors.IsNotFound(err) { // admission is behind
			return nil
		}
		return apierrors.NewBadRequest("got " + errorText(err))
	})
	if err := p.tryBind(p.clientAs("system:kube-scheduler", "system:masters"), p.protected, "missing"); !apierrors.IsNotFound(err) {
		t.Errorf("kube-scheduler: %v", err)
	}
	if out := p.mustRun("init"); !strings.Contains(out, "nothing to change") {
		t.Errorf("it is not kept: %s", out)
	}
}

func TestPolicies_DeletionNeedsAConfirmation(t *testing.T) {
	p := newPolicyTest(t)
	p.joinNode("gw-9", identity.NodeIdentitySpec{Key: userKey("Z")})
	extra := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "frond-hub-notes"}}
	if _, err := p.client.CoreV1().Secrets(names.Namespace).Create(t.Context(), extra, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := p.tryDelete("secrets", names.Namespace, extra.Name); err != nil {
		t.Errorf("a Secret that is not Frond's: %v", err)
	}
	type object struct{ resource, ns, name, flag string }
	objects := []object{
		{"namespaces", "", names.Namespace, ""},
		{"nodeidentities." + identity.Group, "", "gw-9", ""},
		{"customresourcedefinitions.apiextensions.k8s.io", "", identity.Resource + "." + identity.Group, ""},
	}
	for _, name := range (install.Settings{HubServers: 1}).Folders() {
		objects = append(objects, object{"secrets", names.Namespace, name, "-n frond-system "})
	}
	for _, name := range []string{install.SettingsName, install.CloudcoreName, install.BundleName} {
		objects = append(objects, object{"configmaps", names.Namespace, name, "-n frond-system "})
	}
	if err := checkRefusal(p.tryDelete("nodeidentities."+identity.Group, "", "gw-9"), "frond node revoke gw-9"); err != nil {
		t.Error(err)
	}
	for _, tt := range objects {
		command := "kubectl " + tt.flag + "annotate " + tt.resource + " " + tt.name + " frond.io/confirm-deletion=" + tt.name
		if err := checkRefusal(p.tryDelete(tt.resource, tt.ns, tt.name), command); err != nil {
			t.Errorf("%s %s: %v", tt.resource, tt.name, err)
		}
		p.confirmDeletion(tt.resource, tt.ns, tt.name, "wrong")
		if err := checkRefusal(p.tryDelete(tt.resource, tt.ns, tt.name), command); err != nil {
			t.Errorf("%s %s, confirmed for another name: %v", tt.resource, tt.name, err)
		}
		if tt.resource == "secrets" || strings.HasPrefix(tt.resource, "node") {
			if err := checkRefusal(p.tryDelete(tt.resource, tt.ns, ""), "confirm it first"); err != nil {
				t.Errorf("all %s at once: %v", tt.resource, err)
			}
		}
		p.confirmDeletion(tt.resource, tt.ns, tt.name, tt.name)
		if err := p.tryDelete(tt.resource, tt.ns, tt.name); err != nil {
			t.Errorf("%s %s, confirmed: %v", tt.resource, tt.name, err)
		}
		p.confirmDeletion(tt.resource, tt.ns, tt.name, "")
	}
	if out := p.mustRun("init"); !strings.Contains(out, "nothing to change") {
		t.Errorf("frond init finds something to change in objects that were nearly deleted: %s", out)
	}
}
