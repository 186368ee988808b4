package kubecalls

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/controllers"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var sharedCluster kubetest.Shared

func TestMain(m *testing.M) { sharedCluster.Verify(m) }

// settleTimeout bounds the waits of these tests, which share two cores with others.
const settleTimeout = 60 * time.Second

// callFixture is a cluster with a namespace of the test's own.
type callFixture struct {
	*testing.T
	cluster *kubetest.Cluster
	kube    kubernetes.Interface
	ns      string
}

func newCallFixture(t *testing.T) *callFixture {
	t.Helper()
	cluster := sharedCluster.Cluster(t)
	return &callFixture{T: t, cluster: cluster, kube: cluster.Client(t), ns: cluster.Namespace(t)}
}

// newGuard creates a guard of the named namespaces, with the resources of the cluster's apiserver.
func (c *callFixture) newGuard(protected ...string) *NamespaceGuard {
	c.Helper()
	guard, err := NewNamespaceGuard(controllers.ProtectNamespaces(protected...), c.cluster.Config(), NewWithheldEvents(func(string, string, string) {}))
	if err != nil {
		c.Fatal(err)
	}
	return guard
}

// createPod creates a pod with a service account on an edge node of the test's own.
func (c *callFixture) createPod(name, account string) {
	c.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: c.ns + "-a", Labels: map[string]string{names.LabelEdge: ""}}}
	if _, err := c.kube.CoreV1().Nodes().Create(c.Context(), node, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() {
		_ = c.kube.CoreV1().Nodes().Delete(context.WithoutCancel(c.Context()), node.Name, metav1.DeleteOptions{})
	})
	of := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}
	if _, err := c.kube.CoreV1().ServiceAccounts(c.ns).Create(c.Context(), of, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	_, err := c.kube.CoreV1().Pods(c.ns).Create(c.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		NodeName: node.Name, ServiceAccountName: account, AutomountServiceAccountToken: new(bool), Containers: []corev1.Container{{Name: "c", Image: "i"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		c.Fatal(err)
	}
}

// grantAccess lets an account list and watch a resource in the namespace, by a role and a binding of the same name.
func (c *callFixture) grantAccess(name, account, group, resource string) {
	c.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{group}, Resources: []string{resource}, Verbs: []string{"get", "list", "watch"}},
	}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: c.ns, Name: account}},
	}
	if _, err := c.kube.RbacV1().Roles(c.ns).Create(c.Context(), role, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
	if _, err := c.kube.RbacV1().RoleBindings(c.ns).Create(c.Context(), binding, metav1.CreateOptions{}); err != nil {
		c.Fatal(err)
	}
}

func (c *callFixture) revokeAccess(name string) {
	c.Helper()
	if err := c.kube.RbacV1().RoleBindings(c.ns).Delete(c.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.Fatal(err)
	}
}

// createWidget creates an object of a custom kind of frond.test/v1, and its CRD where that is missing.
func (c *callFixture) createWidget(name string) {
	c.Helper()
	objects, err := dynamic.NewForConfig(c.cluster.Config())
	if err != nil {
		c.Fatal(err)
	}
	crd := &unstructured.Unstructured{}
	definition := `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.frond.test"},
		"spec":{"group":"frond.test","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}]}}`
	if err := json.Unmarshal([]byte(definition), crd); err != nil {
		c.Fatal(err)
	}
	crds := objects.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := crds.Create(c.Context(), crd, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		c.Fatal(err)
	}
	widgets := objects.Resource(schema.GroupVersionResource{Group: "frond.test", Version: "v1", Resource: "widgets"}).Namespace(c.ns)
	widget := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "frond.test/v1", "kind": "Widget", "metadata": map[string]any{"name": name}}}
	kit.Succeeds(c, settleTimeout, func() error { // the new kind is served a moment later
		_, err := widgets.Create(c.Context(), widget, metav1.CreateOptions{})
		return err
	})
}
