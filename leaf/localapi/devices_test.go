package localapi_test

import (
	"slices"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf/localapi"
)

// allowDevices gives the pod's service account the rights of a device driver.
func (s *podGateway) allowDevices() {
	s.t.Helper()
	key := func(resource string) wire.Key {
		return wire.Key{Group: rbacv1.GroupName, Resource: resource, Name: "driver"}
	}
	s.deliverJSON(key("clusterroles"), rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "driver", UID: "r2"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceslices"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"resource.k8s.io"}, Resources: []string{"resourceclaims"}, Verbs: []string{"get"}},
	}})
	s.deliverJSON(key("clusterrolebindings"), rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "driver", UID: "b2"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "robot"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "driver"},
	})
}

// TestServer_DriverReadsOwnNodesDevices: without a link a driver in a pod reads the claims and the slices of its own node,
// if the cloud has announced that it sends them; of all slices nothing is known.
func TestServer_DriverReadsOwnNodesDevices(t *testing.T) {
	s := newPodGateway(t, func(c *localapi.Config) { c.Online = func() bool { return false } })
	s.allowDevices()
	driver := clientFor(t, withoutRetries(s.configFor(s.issuer.Token(podClaims())))).ResourceV1()
	mine := gatewayNode
	s.deliverJSON(wire.Key{Group: "resource.k8s.io", Resource: "resourceslices", Name: "mine"}, resourcev1.ResourceSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceSlice"}, ObjectMeta: metav1.ObjectMeta{Name: "mine", UID: "s1"},
		Spec: resourcev1.ResourceSliceSpec{Driver: "lamp.test", NodeName: &mine},
	})
	s.deliverJSON(wire.Key{Group: "resource.k8s.io", Resource: "resourceclaims", Namespace: "default", Name: "lamp"}, resourcev1.ResourceClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: "resource.k8s.io/v1", Kind: "ResourceClaim"}, ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "lamp", UID: "c1"},
	})
	list := func(selector string) ([]string, error) {
		found, err := driver.ResourceSlices().List(t.Context(), metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return nil, err
		}
		var names []string
		for i := range found.Items {
			names = append(names, found.Items[i].Name)
		}
		return names, nil
	}
	if claim, err := driver.ResourceClaims("default").Get(t.Context(), "lamp", metav1.GetOptions{}); err != nil || claim.UID != "c1" {
		t.Errorf("the claim: %+v %v", claim, err)
	}
	if _, err := list("spec.nodeName=" + gatewayNode); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("slices that the cloud has said nothing of: %v", err)
	}
	s.deliverJSON(wire.DeliveredKindsKey(), wire.NewDeliveredKinds([]wire.DeliveredKind{{Group: "resource.k8s.io", Resource: "resourceslices", Version: "v1"}}))
	for selector, want := range map[string][]string{
		"spec.nodeName=" + gatewayNode:                            {"mine"},
		"spec.nodeName=" + gatewayNode + ",spec.driver=lamp.test": {"mine"},
		"spec.nodeName=" + gatewayNode + ",spec.driver=other":     nil,
	} {
		if got, err := list(selector); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %v %v, want %v", selector, got, err, want)
		}
	}
	for _, selector := range []string{"", "spec.nodeName=another", "spec.driver=lamp.test"} {
		if got, err := list(selector); !apierrors.IsServiceUnavailable(err) {
			t.Errorf("%q: %v %v, want 503", selector, got, err)
		}
	}
}
