package localapi_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/wire"
)

// TestResourceVersion_CloudAndLocalNeverMix: a write with a version read here is sent with the cloud's version of that
// state. A version from an answer of the cloud may by chance equal the store's revision of the newest state. It still means
// the cloud's version: the cloud gets it unchanged, and refuses it unless it is the newest.
func TestResourceVersion_CloudAndLocalNeverMix(t *testing.T) {
	s := newPodGateway(t)
	s.bindRole("default", rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}})
	cm := newConfigMap("a", "1")
	cm.ResourceVersion = "4711"
	s.deliverObjects(cm)
	s.cloud.goOnline(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			writeAnswer(w, http.StatusOK, cm)
			return
		}
		var sent corev1.ConfigMap
		if err := json.NewDecoder(r.Body).Decode(&sent); err != nil || sent.ResourceVersion != "4711" {
			answerStatus(w, http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
		writeAnswer(w, http.StatusOK, &sent)
	})
	cfg := s.configFor(s.issuer.Token(podClaims()))
	cfg.ContentType = "application/json" // the fake cloud reads JSON
	c := clientFor(t, cfg).CoreV1().ConfigMaps("default")
	read, err := c.Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Update(t.Context(), read, metav1.UpdateOptions{}); err != nil {
		t.Errorf("a write of what was read: %v", err)
	}
	e, err := s.store.Get(wire.Key{Resource: "configmaps", Namespace: "default", Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	for name, version := range map[string]string{"the store's number": fmt.Sprint(e.Revision), "an older state here": fmt.Sprint(uint64(1e18) + e.Revision - 1)} {
		stale := read.DeepCopy()
		stale.ResourceVersion = version
		if _, err := c.Update(t.Context(), stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
			t.Errorf("%s as the cloud's version: %v, want a conflict", name, err)
		}
	}
	// A list that only the cloud can answer is not requested with a version of this gateway.
	leases := clientFor(t, cfg).CoordinationV1().Leases("default")
	if _, err := leases.List(t.Context(), metav1.ListOptions{ResourceVersion: fmt.Sprint(uint64(1e18) + 5)}); !apierrors.IsResourceExpired(err) {
		t.Errorf("list of the cloud's from a version here: %v", err)
	}
	// A watch or list from one of the cloud's versions starts over.
	if _, err := s.newClient(true).CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "1"}); !apierrors.IsResourceExpired(err) {
		t.Errorf("watch from a version of the cloud: %v", err)
	}
}
