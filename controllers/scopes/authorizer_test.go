package scopes

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/controllers"
)

const someone = "someone"

// errDown is the error of an API that does not answer.
var errDown = errors.New("no answer")

// newTestAuthorizer creates an authorizer whose reviews of a resource are answered by a function.
func newTestAuthorizer(perNode int, say func(resource string) (bool, error)) *scopeAuthorizer {
	kube := fake.NewClientset()
	kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		var err error
		review.Status.Allowed, err = say(review.Spec.ResourceAttributes.Resource)
		return true, review, err
	})
	return &scopeAuthorizer{
		kube: kube, allowedUsers: []string{someone}, answerTTL: time.Minute, metrics: newMetrics(nil, nil, nil), perNode: perNode, undecided: newUndecidedRights(),
		answers: map[accessQuery]accessAnswer{}, catalog: &resourceCatalog{entries: map[wire.Scope]catalogEntry{}},
	}
}

// wantFor returns a want for a resource that the API has.
func (j *scopeAuthorizer) wantFor(resource string) wire.ScopeWant {
	scope := wire.Scope{Group: "example.com", Version: "v1", Resource: resource}
	j.catalog.entries[scope] = catalogEntry{kind: wire.ScopeKind{Scope: scope, Kind: "Kind"}, until: time.Now().Add(24 * time.Hour)}
	return wire.ScopeWant{Scope: scope, Users: []string{someone}}
}

func heldGrants(want wire.ScopeWant) []grant {
	return []grant{{wire.ScopeKind{Scope: want.Scope, Kind: "Kind"}, want.Users}}
}

// Many requests of a node do not prevent the evaluation of the scopes that it holds.
func TestAuthorizer_EvaluatesHeldScopesFirst(t *testing.T) {
	asked := 0
	j := newTestAuthorizer(64, func(string) (bool, error) {
		if asked++; asked > 5 {
			return false, errDown // the timeout has passed
		}
		return false, nil
	})
	var wants []wire.ScopeWant
	for i := range 30 {
		wants = append(wants, j.wantFor(fmt.Sprintf("a%02d", i)))
	}
	last := j.wantFor("zebras")
	wants = append(wants, last)
	verdicts := j.evaluateWants(t.Context(), "n", wants, heldGrants(last))
	if got := verdicts[30].users[0]; got.Scope != last.Scope || got.Reason != wire.ScopeForbidden {
		t.Errorf("what is held: %+v", got)
	}
	if got := grantsFrom(verdicts, heldGrants(last)); len(got) != 0 {
		t.Errorf("still granted: %+v", got)
	}
}

// TestAuthorizer_GrantsServices: a node has the scopes on Services and EndpointSlices that it asks for, whatever the user, how many
// scopes it has, and whether Kubernetes answers; but not on a protected namespace.
func TestAuthorizer_GrantsServices(t *testing.T) {
	j := newTestAuthorizer(1, func(string) (bool, error) { return false, errDown })
	j.protected = controllers.ProtectNamespaces("frond-system")
	var wants []wire.ScopeWant
	for _, k := range wire.ServiceScopes() {
		wants = append(wants, wire.ScopeWant{Scope: k.Scope, Users: []string{"system:node:n", "system:kube-proxy"}})
	}
	granted := grantsFrom(j.evaluateWants(t.Context(), "n", wants, nil), nil)
	if len(granted) != 2 || granted[0].Kind != "Service" || !granted[1].Namespaced || len(granted[1].Users) != 2 {
		t.Errorf("granted %+v", granted)
	}
	wants[0].Namespace = "frond-system"
	wants[1].Version = "v1beta1"
	if granted := grantsFrom(j.evaluateWants(t.Context(), "n", wants, nil), nil); len(granted) != 0 {
		t.Errorf("granted on a protected namespace, or in another version: %+v", granted)
	}
}

// TestAuthorizer_RefusesProtectedNamespaces: no user gets a scope on a protected namespace, whatever Kubernetes would allow.
func TestAuthorizer_RefusesProtectedNamespaces(t *testing.T) {
	j := newTestAuthorizer(64, func(string) (bool, error) { return true, nil })
	j.protected = controllers.ProtectNamespaces("frond-system")
	for namespace, want := range map[string]wire.ScopeReason{"frond-system": wire.ScopeForbidden, "frond": ""} {
		reason, message := j.evaluateUser(t.Context(), "n", someone, wire.Scope{Version: "v1", Resource: "secrets", Namespace: namespace})
		if reason != want {
			t.Errorf("%s: %q %s", namespace, reason, message)
		}
	}
}

// An undecided grant lapses if Kubernetes answers other requests: then a right may be gone. While it is down, nothing lapses.
func TestAuthorizer_UndecidedGrantLapses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := false
		j := newTestAuthorizer(64, func(resource string) (bool, error) {
			if down || resource == "zebras" {
				return false, errDown
			}
			return true, nil
		})
		other, want := j.wantFor("apes"), j.wantFor("zebras")
		kept := func(rounds int) int {
			for round := range rounds {
				if len(grantsFrom(j.evaluateWants(t.Context(), "n", []wire.ScopeWant{want}, heldGrants(want)), heldGrants(want))) == 0 {
					return round
				}
				j.evaluateWants(t.Context(), "m", []wire.ScopeWant{other}, nil)
				time.Sleep(2 * time.Minute) //nolint:forbidigo // of synctest's clock
			}
			return rounds
		}
		if got := kept(3); got != 3 {
			t.Fatalf("it was kept for %d rounds", got)
		}
		down = true
		if got := kept(60); got != 60 {
			t.Fatalf("with Kubernetes down for two hours, it was kept for %d rounds", got)
		}
		down = false
		if got := kept(60); got < 1 || got > 5 {
			t.Errorf("it was kept for %d more rounds", got)
		}
	})
}

// The quota of a node is for the scopes that it is granted, and first for those that it holds.
func TestAuthorizer_RefusedScopesUseNoQuota(t *testing.T) {
	j := newTestAuthorizer(2, func(resource string) (bool, error) { return resource[0] != 'a', nil })
	wants := []wire.ScopeWant{j.wantFor("a1"), j.wantFor("a2"), j.wantFor("a3"), j.wantFor("b1"), j.wantFor("b2"), j.wantFor("zebras")}
	want := []wire.ScopeReason{wire.ScopeForbidden, wire.ScopeForbidden, wire.ScopeForbidden, "", wire.ScopeTooLarge, ""}
	for i, v := range j.evaluateWants(t.Context(), "n", wants, heldGrants(wants[5])) {
		if got := v.users[0]; got.Reason != want[i] || got.Scope != wants[i].Scope {
			t.Errorf("%s: %q, want %q", wants[i].Resource, got.Reason, want[i])
		}
	}
}
