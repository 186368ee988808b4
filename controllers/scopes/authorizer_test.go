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

// errDown is what the API says when it does not answer.
var errDown = errors.New("no answer")

// newJudge makes one whose questions about a resource are answered by a function.
func newJudge(perNode int, say func(resource string) (bool, error)) *judge {
	kube := fake.NewClientset()
	kube.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		var err error
		review.Status.Allowed, err = say(review.Spec.ResourceAttributes.Resource)
		return true, review, err
	})
	return &judge{
		kube: kube, allowed: []string{someone}, keep: time.Minute, metrics: newMetrics(nil, nil, nil), perNode: perNode, doubts: newDoubts(),
		answers: map[question]answer{}, catalog: &catalog{pages: map[wire.Scope]page{}},
	}
}

// wish is for a resource that the API has.
func (j *judge) wish(resource string) wire.ScopeWant {
	scope := wire.Scope{Group: "example.com", Version: "v1", Resource: resource}
	j.catalog.pages[scope] = page{kind: wire.ScopeKind{Scope: scope, Kind: "Kind"}, until: time.Now().Add(24 * time.Hour)}
	return wire.ScopeWant{Scope: scope, Users: []string{someone}}
}

func held(want wire.ScopeWant) []grant {
	return []grant{{wire.ScopeKind{Scope: want.Scope, Kind: "Kind"}, want.Users}}
}

// A node that asks for much does not keep from being judged what it holds.
func TestWhatIsHeldIsJudgedFirst(t *testing.T) {
	asked := 0
	j := newJudge(64, func(string) (bool, error) {
		if asked++; asked > 5 {
			return false, errDown // the time is up
		}
		return false, nil
	})
	var wants []wire.ScopeWant
	for i := range 30 {
		wants = append(wants, j.wish(fmt.Sprintf("a%02d", i)))
	}
	last := j.wish("zebras")
	wants = append(wants, last)
	verdicts := j.all(t.Context(), "n", wants, held(last))
	if got := verdicts[30].users[0]; got.Scope != last.Scope || got.Reason != wire.ScopeForbidden {
		t.Errorf("what is held: %+v", got)
	}
	if got := grants(verdicts, held(last)); len(got) != 0 {
		t.Errorf("still granted: %+v", got)
	}
}

// TestJudge_ProtectedNamespaces: nobody gets a scope on a protected namespace, whatever Kubernetes would allow.
func TestJudge_ProtectedNamespaces(t *testing.T) {
	j := newJudge(64, func(string) (bool, error) { return true, nil })
	j.protected = controllers.ProtectNamespaces("frond-system")
	for namespace, want := range map[string]wire.ScopeReason{"frond-system": wire.ScopeForbidden, "frond": ""} {
		reason, message := j.one(t.Context(), "n", someone, wire.Scope{Version: "v1", Resource: "secrets", Namespace: namespace})
		if reason != want {
			t.Errorf("%s: %q %s", namespace, reason, message)
		}
	}
}

// What cannot be judged ends, if Kubernetes answers others: then a right may be gone. While it is down, nothing ends.
func TestWhatIsNotJudgedEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		down := false
		j := newJudge(64, func(resource string) (bool, error) {
			if down || resource == "zebras" {
				return false, errDown
			}
			return true, nil
		})
		other, want := j.wish("apes"), j.wish("zebras")
		kept := func(rounds int) int {
			for round := range rounds {
				if len(grants(j.all(t.Context(), "n", []wire.ScopeWant{want}, held(want)), held(want))) == 0 {
					return round
				}
				j.all(t.Context(), "m", []wire.ScopeWant{other}, nil)
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

// The places of a node are for what it is granted, and first for what it holds.
func TestRefusedScopesTakeNoPlace(t *testing.T) {
	j := newJudge(2, func(resource string) (bool, error) { return resource[0] != 'a', nil })
	wants := []wire.ScopeWant{j.wish("a1"), j.wish("a2"), j.wish("a3"), j.wish("b1"), j.wish("b2"), j.wish("zebras")}
	want := []wire.ScopeReason{wire.ScopeForbidden, wire.ScopeForbidden, wire.ScopeForbidden, "", wire.ScopeTooLarge, ""}
	for i, v := range j.all(t.Context(), "n", wants, held(wants[5])) {
		if got := v.users[0]; got.Reason != want[i] || got.Scope != wants[i].Scope {
			t.Errorf("%s: %q, want %q", wants[i].Resource, got.Reason, want[i])
		}
	}
}
