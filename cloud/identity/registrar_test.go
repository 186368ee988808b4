package identity_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/names"
	cloud "github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/test/kit"
)

// askRegistrar calls a registrar directly, as a caller whose identity the hub has verified.
func (g *testGateway) askRegistrar(r *cloud.Registrar, caller string, request any) identity.Enrolment {
	g.Helper()
	data, err := json.Marshal(request)
	if err != nil {
		g.Fatal(err)
	}
	handle := r.Enrol
	if _, renews := request.(identity.RenewRequest); renews {
		handle = r.Renew
	}
	var reply any
	kit.Succeeds(g.T, testTimeout, func() (err error) { // a request for which Kubernetes was too busy is repeated
		reply, err = handle(g.Context(), caller, data)
		return err
	})
	return reply.(identity.Enrolment)
}

func (g *testGateway) enrolWith(r *cloud.Registrar) identity.Enrolment {
	g.Helper()
	return g.askRegistrar(r, g.key, g.enrolRequest())
}

func wantGranted(t *testing.T, answer identity.Enrolment) {
	t.Helper()
	if answer.Reason != "" || answer.Expires.IsZero() {
		t.Errorf("refused: %+v", answer)
	}
}

func wantRefused(t *testing.T, answer identity.Enrolment, words ...string) {
	t.Helper()
	for _, word := range words {
		if answer.Reason == "" || !strings.Contains(answer.Reason, word) {
			t.Errorf("answer %+v, want a refusal with %q", answer, word)
		}
	}
}

func TestRegistrar_TokenUsesUnderConcurrency(t *testing.T) {
	w := newKubeFixture(t)
	registrars := []*cloud.Registrar{w.newRegistrar(), w.newRegistrar()}
	const uses, gateways = 3, 8
	token := w.createToken("many01", map[string]string{names.AnnotationUses: fmt.Sprint(uses)})
	var g errgroup.Group
	answers := make([]identity.Enrolment, 2*gateways)
	for i := range gateways {
		gw := w.newGateway(fmt.Sprintf("many-%d", i), token)
		for j, r := range registrars { // each of them asks both replicas
			g.Go(func() error {
				answers[2*i+j] = gw.enrolWith(r)
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	in := 0
	for i := range gateways {
		// One of a pair may be refused because of what the other has just done; if it asked again, it would not be.
		if answers[2*i].Reason == "" || answers[2*i+1].Reason == "" {
			in++
		}
	}
	if used := w.tokenUses("many01"); in != uses || len(used) != uses {
		t.Errorf("%d came in by a token for %d, which notes %v", in, uses, used)
	}
}

func TestRegistrar_NodeIsNotTakenOver(t *testing.T) {
	w := newKubeFixture(t)
	r := w.newRegistrar()
	open := w.createToken("take01", map[string]string{names.AnnotationUses: "0"})
	named := w.createToken("take02", map[string]string{names.AnnotationNode: "take-1", names.AnnotationUses: "0"})
	owner, thief := w.newGateway("take-1", open), w.newGateway("take-1", open)
	wantGranted(t, owner.enrolWith(r))
	wantGranted(t, owner.enrolWith(r))
	if used := w.tokenUses("take01"); len(used) != 0 {
		t.Errorf("a token for any number notes %v", used)
	}
	wantRefused(t, thief.enrolWith(r), "has another key", "--node take-1")
	if spec := owner.readSpec(); spec.Key != owner.key {
		t.Fatalf("recorded: %+v", spec)
	}

	// Nor after its key has expired, nor after the key can no longer be renewed.
	for _, ago := range []time.Duration{w.policy.RenewWindow / 2, 2 * w.policy.RenewWindow} {
		owner.editSpec(func(s *identity.NodeIdentitySpec) { s.Expires = metav1.NewTime(time.Now().Add(-ago)) })
		wantRefused(t, thief.enrolWith(r), "has another key", "--node take-1")
	}

	owner.revokeNode()
	waitUntil(t, func() bool { return strings.Contains(thief.enrolWith(r).Reason, "was revoked") }, "anybody may be a revoked node")
	owner.token = named
	wantRefused(t, owner.enrolWith(r), "this key was revoked")
	other := w.newGateway("take-2", named)
	wantRefused(t, other.enrolWith(r), "for another node")
	again := w.newGateway("take-1", named)
	wantGranted(t, again.enrolWith(r))
	if spec := again.readSpec(); spec.Key != again.key || spec.RevokedAt != nil || len(spec.Revoked) != 1 || spec.Revoked[0] != owner.key {
		t.Errorf("recorded: %+v", spec)
	}

	// A Node that is no gateway cannot be taken over by a request.
	if _, err := w.kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "take-vm"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteNode(w, "take-vm") })
	wantRefused(t, w.newGateway("take-vm", open).enrolWith(r), "already", "--node take-vm")
}

func TestRegistrar_ReplacedKeyStaysOut(t *testing.T) {
	w := newKubeFixture(t)
	r := w.newRegistrar()
	name := map[string]string{names.AnnotationNode: "back-1"}
	old := w.newGateway("back-1", w.createToken("back01", name))
	wantGranted(t, old.enrolWith(r))
	again := w.newGateway("back-1", w.createToken("back02", name))
	wantGranted(t, again.enrolWith(r))
	wantRefused(t, old.enrolWith(r), "this key was revoked")
	again.editSpec(func(s *identity.NodeIdentitySpec) { s.Expires = metav1.Now() })
	wantGranted(t, again.enrolWith(r))
	if spec := again.readSpec(); spec.Key != again.key || len(spec.Revoked) != 1 || spec.Revoked[0] != old.key {
		t.Errorf("recorded: %+v", spec)
	}
}

func TestRegistrar_KeyIsOneNode(t *testing.T) {
	w := newKubeFixture(t)
	r := w.newRegistrar()
	first := w.newGateway("one-1", w.createToken("onenod", map[string]string{names.AnnotationUses: "0"}))
	wantGranted(t, first.enrolWith(r))
	second := w.newGateway("one-2", first.token)
	second.keyPair, second.key = first.keyPair, first.key
	wantRefused(t, second.enrolWith(r), "this key is node one-1")
}

func TestRegistrar_RequestMustBeTheCallersOwn(t *testing.T) {
	w := newKubeFixture(t)
	r := w.newRegistrar()
	g, other := w.newGateway("own-1", w.createToken("own001", nil)), w.newGateway("own-2", "")
	wantRefused(t, g.askRegistrar(r, other.key, g.enrolRequest()), "not the one of this link")
	request := g.enrolRequest()
	request.Node = "own-3"
	wantRefused(t, g.askRegistrar(r, g.key, request), "has not signed")
	request = g.enrolRequest()
	request.Token = "own001.zzzzzzzzzzzzzzzz"
	wantRefused(t, g.askRegistrar(r, g.key, request), "not known")
	if reply, err := r.Enrol(t.Context(), g.key, []byte("[")); err != nil || reply.(identity.Enrolment).Reason == "" {
		t.Errorf("garbage: %v %v", reply, err)
	}
	wantGranted(t, g.enrolWith(r))

	renewal := g.renewRequest(g.keyPair)
	wantRefused(t, g.askRegistrar(r, other.key, renewal), "not the one of this link")
	wantRefused(t, g.askRegistrar(r, "own-2", renewal), "not the one of this link")
	renewal.Approval = renewal.Approval[:10]
	wantRefused(t, g.askRegistrar(r, "own-1", renewal), "has not approved")
	stranger := g.renewRequest(other.keyPair)
	wantRefused(t, g.askRegistrar(r, "own-1", stranger), "is not node own-1")
	if used := w.tokenUses("own001"); len(used) != 1 {
		t.Errorf("the token notes %v", used)
	}
}

func TestRegistrar_TokenGuessingIsLocked(t *testing.T) {
	w := newKubeFixture(t)
	r := w.newRegistrar()
	good := w.createToken("guess1", nil)
	g := w.newGateway("guess-1", "guess1.zzzzzzzzzzzzzzzz")
	for i := 0; ; i++ {
		answer := g.enrolWith(r)
		if strings.Contains(answer.Reason, "too many") {
			break
		}
		wantRefused(t, answer, "not known")
		if i > 1000 { // a new minute begins the count again
			t.Fatal("guessed for ever")
		}
	}
	g.token = good
	wantRefused(t, g.enrolWith(r), "too many")
	wantGranted(t, w.newGateway("guess-2", good).enrolWith(r))
}

func TestRegistrar_RenewsAndReplacesKeys(t *testing.T) {
	w := newKubeFixture(t)
	r := w.newRegistrar()
	g := w.newGateway("renew-1", w.createToken("renew1", nil))
	wantGranted(t, g.enrolWith(r))
	version := func() time.Time { return g.readSpec().Issued.Time }
	early := version()
	if answer := g.askRegistrar(r, g.node, g.renewRequest(g.keyPair)); answer.Reason != "" || !version().Equal(early) {
		t.Errorf("a key that is fresh: %+v, and written again", answer)
	}
	age := func(of time.Duration) {
		t.Helper()
		g.editSpec(func(s *identity.NodeIdentitySpec) {
			s.Issued, s.Expires = metav1.NewTime(time.Now().Add(-of)), metav1.NewTime(time.Now().Add(w.policy.KeyLifetime-of))
		})
	}

	age(w.policy.KeyLifetime / 2)
	if answer := g.askRegistrar(r, g.node, g.renewRequest(g.keyPair)); time.Until(answer.Expires) < w.policy.KeyLifetime-time.Minute {
		t.Errorf("more time: %+v", answer)
	}

	age(w.policy.KeyLifetime / 2)
	before := g.newKey()
	request := g.renewRequest(before)
	wantGranted(t, g.askRegistrar(r, g.node, request))
	if spec := g.readSpec(); spec.Key != g.key || spec.Previous != request.Current {
		t.Errorf("recorded: %+v", spec)
	}
	wantGranted(t, g.askRegistrar(r, g.node, request)) // the answer was lost
	lost := g.key
	g.newKey() // and the key with it
	wantRefused(t, g.askRegistrar(r, g.node, g.renewRequest(before)), "try again in")
	age(w.policy.KeyLifetime / 2)
	wantGranted(t, g.askRegistrar(r, g.node, g.renewRequest(before)))
	if spec := g.readSpec(); spec.Key != g.key || spec.Previous != request.Current || spec.Key == lost {
		t.Errorf("recorded: %+v", spec)
	}
}

func TestRegistrar_ExpiredKeyWithinRenewWindow(t *testing.T) {
	w := newKubeFixture(t)
	g := w.newGateway("late-1", w.createToken("late01", nil))
	r := w.newRegistrar()
	wantGranted(t, g.enrolWith(r))
	expire := func(ago time.Duration) {
		t.Helper()
		g.editSpec(func(s *identity.NodeIdentitySpec) {
			s.Issued, s.Expires = metav1.NewTime(time.Now().Add(-ago-w.policy.KeyLifetime)), metav1.NewTime(time.Now().Add(-ago))
		})
	}
	expire(w.policy.RenewWindow - time.Minute)
	wantGranted(t, g.askRegistrar(r, g.key, g.renewRequest(g.keyPair))) // from the lobby
	expire(w.policy.RenewWindow + time.Minute)
	wantRefused(t, g.askRegistrar(r, g.key, g.renewRequest(g.keyPair)), "expired on", "frond token create --node late-1")

	w.policy.RenewWindow = 0
	never := w.newRegistrar()
	expire(time.Second)
	wantRefused(t, g.askRegistrar(never, g.key, g.renewRequest(g.keyPair)), "expired on")
	g.revokeNode()
	wantRefused(t, g.askRegistrar(r, g.key, g.renewRequest(g.keyPair)), "is not node late-1", "revoked")
}
