package localapi_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/frond-edge/frond/api/wire"
)

// addSecondPod adds a pod with a service account of its own, and a binding to the first one's role. It returns the pod's token.
func (s *podGateway) addSecondPod(binding wire.Key) string {
	s.t.Helper()
	other := newPod("other", "u2", "1")
	other.Spec.ServiceAccountName = "other"
	s.deliverObjects(other)
	s.deliverJSON(wire.Key{Resource: "serviceaccounts", Namespace: "default", Name: "other"},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "other", UID: "a2"}})
	s.deliverJSON(binding, rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: binding.Name, UID: "b2"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "other"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "robot"},
	})
	of := podClaims()
	of.Account, of.AccountUID, of.Pod, of.PodUID = "other", "a2", "other", "u2"
	return s.issuer.Token(of)
}

// TestWatch_EndsWhenRoleIsRevoked: two pods watch the same resource; one loses its role. Its watch ends although the other
// keeps the kind here, and its next request gets the reason. The other's watch continues.
func TestWatch_EndsWhenRoleIsRevoked(t *testing.T) {
	s := newPodGateway(t)
	s.cloud.goOnline(serveDiscovery)
	binding := wire.Key{Group: rbacv1.GroupName, Resource: "rolebindings", Namespace: "default", Name: "other"}
	loses := dynamicFor(t, withoutRetries(s.configFor(s.addSecondPod(binding))))
	keeps := dynamicFor(t, withoutRetries(s.configFor(s.issuer.Token(podClaims()))))
	s.deliverWidget("a", 1)
	s.deliverMark(widgetScope(), "Widget")
	lost, err := loses.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer lost.Stop()
	kept, err := keeps.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Stop()
	for _, w := range []watch.Interface{lost, kept} {
		if e := <-w.ResultChan(); e.Type != watch.Added {
			t.Fatalf("first event %+v", e)
		}
	}
	// A change that removes no right ends no watch.
	s.bindRole("default", rbacv1.PolicyRule{
		Verbs: []string{"get", "list", "watch"}, APIGroups: []string{"", "example.com"}, Resources: []string{"configmaps", "widgets", "more"},
	})
	s.deliverWidget("a", 2)
	for _, w := range []watch.Interface{lost, kept} {
		if e := <-w.ResultChan(); e.Type != watch.Modified {
			t.Fatalf("after a change of the role: %+v", e)
		}
	}
	s.deliverRaw(binding, nil)
	select {
	case e, ok := <-lost.ResultChan():
		if ok {
			t.Errorf("the watch without a role got %+v", e)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the watch outlives its role")
	}
	if _, err := loses.Watch(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another watch without a role: %v", err)
	}
	s.deliverWidget("a", 3)
	if e := <-kept.ResultChan(); e.Type != watch.Modified {
		t.Errorf("the other's watch got %+v", e)
	}
}
