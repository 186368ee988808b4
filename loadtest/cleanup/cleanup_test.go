package cleanup_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/loadtest/cleanup"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/kubetest"
)

var sharedCluster kubetest.Shared

func TestMain(m *testing.M) { sharedCluster.Verify(m) }

// installKinds installs the definitions of Frond's kinds.
func installKinds(t *testing.T, client dynamic.Interface) {
	t.Helper()
	definitions, err := crd.Definitions()
	kit.Must(t, err)
	for _, data := range definitions {
		o := &unstructured.Unstructured{}
		kit.Must(t, yaml.Unmarshal(data, &o.Object))
		all := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
		if _, err := all.Create(t.Context(), o, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
	}
	kit.Succeeds(t, 2*time.Minute, func() error {
		_, err := client.Resource(identity.GroupVersionResource()).List(t.Context(), metav1.ListOptions{})
		return err
	})
}

// addGateway creates an identity, and a Node with the label of a run; without one if run is "", and no Node at all if it is "-".
func addGateway(t *testing.T, kube kubernetes.Interface, identities dynamic.ResourceInterface, name, run, key string) {
	t.Helper()
	_, err := identities.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": identity.Group + "/" + identity.Version, "kind": identity.Kind, "metadata": map[string]any{"name": name}, "spec": map[string]any{"key": key},
	}}, metav1.CreateOptions{})
	kit.Must(t, err)
	if run == "-" {
		return
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if run != "" {
		node.Labels = map[string]string{names.LabelLoadtestRun: run}
	}
	_, err = kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	kit.Must(t, err)
}

// A run deletes what is its own, by label or by key, and nothing else, whatever its name; and it may do so twice.
func TestRun_DeletesItsOwnOnly(t *testing.T) {
	c := sharedCluster.Cluster(t)
	kube := c.Client(t)
	client, err := dynamic.NewForConfig(c.Config())
	kit.Must(t, err)
	installKinds(t, client)
	identities := client.Resource(identity.GroupVersionResource())
	run, err := cleanup.New("r1", kube, c.Config())
	kit.Must(t, err)
	key := func(letter string) string { // as long as a key
		text := "U"
		for len(text) < 56 {
			text += letter
		}
		return text
	}
	kit.Must(t, run.CreateNamespace(t.Context()))
	_, err = run.CreateToken(t.Context(), time.Hour)
	kit.Must(t, err)
	addGateway(t, kube, identities, run.NodeName(0), "r1", key("A"))
	addGateway(t, kube, identities, run.NodeName(1), "-", key("B")) // killed before it had a Node
	addGateway(t, kube, identities, run.NodeName(2), "-", key("C")) // of somebody else
	addGateway(t, kube, identities, run.NodeName(3), "r12", key("D"))
	addGateway(t, kube, identities, "gw-1", "", key("E"))
	for range 2 {
		kit.Must(t, run.Delete(t.Context(), map[string]string{run.NodeName(0): key("A"), run.NodeName(1): key("B"), run.NodeName(2): key("X")}))
	}
	want := []string{"gw-1", run.NodeName(2), run.NodeName(3)}
	if diff := cmp.Diff(want, identityNames(t.Context(), t, identities)); diff != "" {
		t.Errorf("identities (-want +got):\n%s", diff)
	}
	nodes, err := kube.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	var left []string
	for i := range nodes.Items {
		left = append(left, nodes.Items[i].Name)
	}
	slices.Sort(left)
	if diff := cmp.Diff([]string{"gw-1", run.NodeName(3)}, left); diff != "" {
		t.Errorf("Nodes (-want +got):\n%s", diff)
	}
	secrets, err := kube.CoreV1().Secrets(identity.TokenNamespace).List(t.Context(), metav1.ListOptions{LabelSelector: names.LabelLoadtestRun})
	kit.Must(t, err)
	namespace, err := kube.CoreV1().Namespaces().Get(t.Context(), run.Namespace(), metav1.GetOptions{})
	if len(secrets.Items) != 0 || err == nil && namespace.DeletionTimestamp == nil {
		t.Errorf("%d tokens are left, and the namespace: %v", len(secrets.Items), err)
	}
}

func identityNames(ctx context.Context, t *testing.T, identities dynamic.ResourceInterface) (all []string) {
	t.Helper()
	list, err := identities.List(ctx, metav1.ListOptions{})
	kit.Must(t, err)
	for i := range list.Items {
		all = append(all, list.Items[i].GetName())
	}
	slices.Sort(all)
	return all
}

func TestNew_RefusesIdsThatAreNoNames(t *testing.T) {
	c := sharedCluster.Cluster(t)
	for _, id := range []string{"", "Run", "a.b", "a-very-long-name-of-a-run-that-would-not-fit-into-a-label-of-63"} {
		if _, err := cleanup.New(id, c.Client(t), c.Config()); err == nil {
			t.Errorf("%q is a run", id)
		}
	}
}
