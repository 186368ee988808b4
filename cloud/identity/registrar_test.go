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
	cloud "github.com/frond-edge/frond/cloud/identity"
	"github.com/frond-edge/frond/internal/kubetest"
)

// ask asks a registrar itself, as a caller whom the hub has proved.
func (g *gateway) ask(r *cloud.Registrar, caller string, request any) identity.Enrolment {
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
	kubetest.Eventually(g.T, limit, func() (err error) { // a request that Kubernetes was too busy for is asked again
		reply, err = handle(g.Context(), caller, data)
		return err
	})
	return reply.(identity.Enrolment)
}

func (g *gateway) enrols(r *cloud.Registrar) identity.Enrolment {
	g.Helper()
	return g.ask(r, g.key, g.enrolment())
}

func granted(t *testing.T, answer identity.Enrolment) {
	t.Helper()
	if answer.Reason != "" || answer.Expires.IsZero() {
		t.Errorf("refused: %+v", answer)
	}
}

func refusedFor(t *testing.T, answer identity.Enrolment, words ...string) {
	t.Helper()
	for _, word := range words {
		if answer.Reason == "" || !strings.Contains(answer.Reason, word) {
			t.Errorf("answer %+v, want a refusal with %q", answer, word)
		}
	}
}

func TestATokenIsUsedAsOftenAsItSaysByManyAtOnce(t *testing.T) {
	w := kubeWorld(t)
	registrars := []*cloud.Registrar{w.registrar(), w.registrar()}
	const uses, gateways = 3, 8
	token := w.token("many01", map[string]string{identity.AnnotationUses: fmt.Sprint(uses)})
	var g errgroup.Group
	answers := make([]identity.Enrolment, 2*gateways)
	for i := range gateways {
		gw := w.gateway(fmt.Sprintf("many-%d", i), token)
		for j, r := range registrars { // each of them asks both replicas
			g.Go(func() error {
				answers[2*i+j] = gw.enrols(r)
				return nil
			})
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	in := 0
	for i := range gateways {
		// One of a pair may be refused for what the other has just done; asked again it would not be.
		if answers[2*i].Reason == "" || answers[2*i+1].Reason == "" {
			in++
		}
	}
	if used := w.uses("many01"); in != uses || len(used) != uses {
		t.Errorf("%d came in by a token for %d, which notes %v", in, uses, used)
	}
}

func TestANodeIsNotTakenOver(t *testing.T) {
	w := kubeWorld(t)
	r := w.registrar()
	open := w.token("take01", map[string]string{identity.AnnotationUses: "0"})
	named := w.token("take02", map[string]string{identity.AnnotationNode: "take-1", identity.AnnotationUses: "0"})
	owner, thief := w.gateway("take-1", open), w.gateway("take-1", open)
	granted(t, owner.enrols(r))
	granted(t, owner.enrols(r))
	if used := w.uses("take01"); len(used) != 0 {
		t.Errorf("a token for any number notes %v", used)
	}
	refusedFor(t, thief.enrols(r), "has another key", "--node take-1")
	if spec := owner.spec(); spec.Key != owner.key {
		t.Fatalf("recorded: %+v", spec)
	}

	// Nor once its key is over, and once that cannot be renewed any more.
	for _, ago := range []time.Duration{w.policy.RenewWindow / 2, 2 * w.policy.RenewWindow} {
		owner.change(func(s *identity.NodeIdentitySpec) { s.Expires = metav1.NewTime(time.Now().Add(-ago)) })
		refusedFor(t, thief.enrols(r), "has another key", "--node take-1")
	}

	owner.revoke()
	eventually(t, func() bool { return strings.Contains(thief.enrols(r).Reason, "was revoked") }, "anybody may be a revoked node")
	owner.token = named
	refusedFor(t, owner.enrols(r), "this key was revoked")
	other := w.gateway("take-2", named)
	refusedFor(t, other.enrols(r), "for another node")
	again := w.gateway("take-1", named)
	granted(t, again.enrols(r))
	if spec := again.spec(); spec.Key != again.key || spec.RevokedAt != nil || len(spec.Revoked) != 1 || spec.Revoked[0] != owner.key {
		t.Errorf("recorded: %+v", spec)
	}

	// A Node that is no gateway is nobody's for the asking.
	if _, err := w.kube.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "take-vm"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteNode(w, "take-vm") })
	refusedFor(t, w.gateway("take-vm", open).enrols(r), "already", "--node take-vm")
}

func TestAKeyThatWasReplacedDoesNotComeBackByItsToken(t *testing.T) {
	w := kubeWorld(t)
	r := w.registrar()
	name := map[string]string{identity.AnnotationNode: "back-1"}
	old := w.gateway("back-1", w.token("back01", name))
	granted(t, old.enrols(r))
	again := w.gateway("back-1", w.token("back02", name))
	granted(t, again.enrols(r))
	refusedFor(t, old.enrols(r), "this key was revoked")
	again.change(func(s *identity.NodeIdentitySpec) { s.Expires = metav1.Now() })
	granted(t, again.enrols(r))
	if spec := again.spec(); spec.Key != again.key || len(spec.Revoked) != 1 || spec.Revoked[0] != old.key {
		t.Errorf("recorded: %+v", spec)
	}
}

func TestAKeyIsOneNode(t *testing.T) {
	w := kubeWorld(t)
	r := w.registrar()
	first := w.gateway("one-1", w.token("onenod", map[string]string{identity.AnnotationUses: "0"}))
	granted(t, first.enrols(r))
	second := w.gateway("one-2", first.token)
	second.pair, second.key = first.pair, first.key
	refusedFor(t, second.enrols(r), "this key is node one-1")
}

func TestWhatIsAskedMustBeTheCallersOwn(t *testing.T) {
	w := kubeWorld(t)
	r := w.registrar()
	g, other := w.gateway("own-1", w.token("own001", nil)), w.gateway("own-2", "")
	refusedFor(t, g.ask(r, other.key, g.enrolment()), "not the one of this link")
	request := g.enrolment()
	request.Node = "own-3"
	refusedFor(t, g.ask(r, g.key, request), "has not signed")
	request = g.enrolment()
	request.Token = "own001.zzzzzzzzzzzzzzzz"
	refusedFor(t, g.ask(r, g.key, request), "not known")
	if reply, err := r.Enrol(t.Context(), g.key, []byte("[")); err != nil || reply.(identity.Enrolment).Reason == "" {
		t.Errorf("garbage: %v %v", reply, err)
	}
	granted(t, g.enrols(r))

	renewal := g.renewal(g.pair)
	refusedFor(t, g.ask(r, other.key, renewal), "not the one of this link")
	refusedFor(t, g.ask(r, "own-2", renewal), "not the one of this link")
	renewal.Approval = renewal.Approval[:10]
	refusedFor(t, g.ask(r, "own-1", renewal), "has not approved")
	stranger := g.renewal(other.pair)
	refusedFor(t, g.ask(r, "own-1", stranger), "is not node own-1")
	if used := w.uses("own001"); len(used) != 1 {
		t.Errorf("the token notes %v", used)
	}
}

func TestGuessingTokensOverALinkEnds(t *testing.T) {
	w := kubeWorld(t)
	r := w.registrar()
	good := w.token("guess1", nil)
	g := w.gateway("guess-1", "guess1.zzzzzzzzzzzzzzzz")
	for i := 0; ; i++ {
		answer := g.enrols(r)
		if strings.Contains(answer.Reason, "too many") {
			break
		}
		refusedFor(t, answer, "not known")
		if i > 1000 { // a new minute begins the count again
			t.Fatal("guessed for ever")
		}
	}
	g.token = good
	refusedFor(t, g.enrols(r), "too many")
	granted(t, w.gateway("guess-2", good).enrols(r))
}

func TestKeysAreRenewedAndReplaced(t *testing.T) {
	w := kubeWorld(t)
	r := w.registrar()
	g := w.gateway("renew-1", w.token("renew1", nil))
	granted(t, g.enrols(r))
	version := func() time.Time { return g.spec().Issued.Time }
	early := version()
	if answer := g.ask(r, g.node, g.renewal(g.pair)); answer.Reason != "" || !version().Equal(early) {
		t.Errorf("a key that is fresh: %+v, and written again", answer)
	}
	age := func(of time.Duration) {
		t.Helper()
		g.change(func(s *identity.NodeIdentitySpec) {
			s.Issued, s.Expires = metav1.NewTime(time.Now().Add(-of)), metav1.NewTime(time.Now().Add(w.policy.KeyLifetime-of))
		})
	}

	age(w.policy.KeyLifetime / 2)
	if answer := g.ask(r, g.node, g.renewal(g.pair)); time.Until(answer.Expires) < w.policy.KeyLifetime-time.Minute {
		t.Errorf("more time: %+v", answer)
	}

	age(w.policy.KeyLifetime / 2)
	before := g.newKey()
	request := g.renewal(before)
	granted(t, g.ask(r, g.node, request))
	if spec := g.spec(); spec.Key != g.key || spec.Previous != request.Current {
		t.Errorf("recorded: %+v", spec)
	}
	granted(t, g.ask(r, g.node, request)) // the answer was lost
	lost := g.key
	g.newKey() // and the key with it
	refusedFor(t, g.ask(r, g.node, g.renewal(before)), "try again in")
	age(w.policy.KeyLifetime / 2)
	granted(t, g.ask(r, g.node, g.renewal(before)))
	if spec := g.spec(); spec.Key != g.key || spec.Previous != request.Current || spec.Key == lost {
		t.Errorf("recorded: %+v", spec)
	}
}

func TestAnExpiredKeyMayBeRenewedWithinTheWindow(t *testing.T) {
	w := kubeWorld(t)
	g := w.gateway("late-1", w.token("late01", nil))
	r := w.registrar()
	granted(t, g.enrols(r))
	expire := func(ago time.Duration) {
		t.Helper()
		g.change(func(s *identity.NodeIdentitySpec) {
			s.Issued, s.Expires = metav1.NewTime(time.Now().Add(-ago-w.policy.KeyLifetime)), metav1.NewTime(time.Now().Add(-ago))
		})
	}
	expire(w.policy.RenewWindow - time.Minute)
	granted(t, g.ask(r, g.key, g.renewal(g.pair))) // from the lobby
	expire(w.policy.RenewWindow + time.Minute)
	refusedFor(t, g.ask(r, g.key, g.renewal(g.pair)), "expired on", "frond token create --node late-1")

	w.policy.RenewWindow = 0
	never := w.registrar()
	expire(time.Second)
	refusedFor(t, g.ask(never, g.key, g.renewal(g.pair)), "expired on")
	g.revoke()
	refusedFor(t, g.ask(r, g.key, g.renewal(g.pair)), "is not node late-1", "revoked")
}
