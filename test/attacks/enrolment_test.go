package attacks_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/install/jointoken"
	"github.com/frond-edge/frond/streams/subject"
)

// issueToken makes a bootstrap token dated at a given time. Cloudcores learn of it a little later.
func issueToken(t *testing.T, o jointoken.Options, at time.Time) (token string) {
	t.Helper()
	if o.TTL == 0 {
		o.TTL = time.Hour
	}
	token, secret, err := jointoken.New(o, at)
	if err != nil {
		t.Fatal(err)
	}
	secrets := kube.CoreV1().Secrets(identity.TokenNamespace)
	if _, err := secrets.Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = secrets.Delete(context.WithoutCancel(t.Context()), secret.Name, metav1.DeleteOptions{}) // it may be gone
	})
	return token
}

// uniqueNumber makes unique names and addresses.
var uniqueNumber atomic.Int64

// newName returns an unused name of a Node.
func newName() string { return fmt.Sprintf("stranger-%d-%d", time.Now().Unix(), uniqueNumber.Add(1)) }

// newAddress returns an unused source address.
func newAddress() string {
	n := uniqueNumber.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 1+n/62500%200, 1+n/250%250, 1+n%250)
}

// newStranger returns a machine with a key of its own and an optional token. It connects to the hub's servers from an address of its own.
func newStranger(t *testing.T, node, token string) loot {
	t.Helper()
	key, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	return loot{node: node, token: token, key: key, sourceIP: newAddress(), addresses: hubLeafAddresses(t), secret: stealCredentials(t, stolen).secret}
}

// hubLeafAddresses returns the leaf listeners of the hub's servers.
func hubLeafAddresses(t *testing.T) (all []string) {
	t.Helper()
	for i := range shared.Spec().Hubs {
		raw, err := os.ReadFile(filepath.Join(shared.Dir(), fmt.Sprintf("hub-%d", i+1), "nats-server.conf"))
		if err != nil {
			t.Fatal(err)
		}
		listen := regexp.MustCompile(`leafnodes \{\s+listen: "([^"]+)"`).FindSubmatch(raw)
		if listen == nil {
			t.Fatalf("hub-%d has no leaf listener", i+1)
		}
		all = append(all, string(listen[1]))
	}
	return all
}

// openWithToken opens a stranger's link, from a new address each time: a token that cloudcore does not know yet counts as guessed.
func openWithToken(t *testing.T, l loot) *attacker {
	t.Helper()
	var th *attacker
	eventually(t, "a stranger with a good token comes in", func(context.Context) string {
		l.sourceIP = newAddress()
		var err error
		if th, err = l.openLink(t.Context(), nil); err != nil {
			return err.Error()
		}
		return ""
	})
	t.Cleanup(func() {
		_ = th.conn.Close()
		<-th.closed
		th.mu.Lock()
		defer th.mu.Unlock()
		checkNoCanary(t, th.rawInput.Bytes())
	})
	return th
}

// callCloud calls a cloudcore on the link's own subject, with retries, and returns the answer.
func (th *attacker) callCloud(t *testing.T, verb string, request []byte) (answer []byte) {
	t.Helper()
	if !th.listening {
		th.subscribe(subject.InboxPrefix(th.node)+".>", "")
		th.listening = true
	}
	at := ""
	if !pollWithin(t.Context(), waitTimeout, func() bool {
		at = fmt.Sprintf("%s.a%d", subject.InboxPrefix(th.node), uniqueNumber.Add(1))
		th.publish(subject.CallSubject(th.node, verb), at, request)
		return pollWithin(t.Context(), 3*time.Second, func() bool { return len(th.received(at)) > 0 })
	}) {
		t.Fatalf("%s: no answer", verb)
	}
	return th.received(at)[0].data
}

// enrolRequest returns the signed enrolment request of a key for a node.
func (l loot) enrolRequest(t *testing.T) []byte {
	t.Helper()
	signature, err := l.key.Sign(identity.Proof(identity.VerbEnrol, l.node, l.publicKey()))
	if err != nil {
		t.Fatal(err)
	}
	return encodeJSON(t, identity.EnrolRequest{Node: l.node, Key: l.publicKey(), Token: l.token, Signature: signature})
}

// renewRequest returns the request to renew the key.
func (l loot) renewRequest(t *testing.T) []byte {
	t.Helper()
	signature, err := l.key.Sign(identity.Proof(identity.VerbRenew, l.node, l.publicKey()))
	if err != nil {
		t.Fatal(err)
	}
	return encodeJSON(t, identity.RenewRequest{Node: l.node, Key: l.publicKey(), Current: l.publicKey(), Approval: signature, Signature: signature})
}

func encodeJSON(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// decodeEnrolment decodes an answer to enrol or renew.
func decodeEnrolment(t *testing.T, answer []byte) (e identity.Enrolment) {
	t.Helper()
	var failed struct {
		Error string `json:"error"`
	}
	if err := errors.Join(json.Unmarshal(answer, &e), json.Unmarshal(answer, &failed)); err != nil {
		t.Fatalf("%.200q: %v", answer, err)
	}
	if failed.Error != "" {
		e.Reason = failed.Error
	}
	return e
}

// nodeIdentity reads the identity of a node from Kubernetes.
func nodeIdentity(ctx context.Context, t *testing.T, node string) identity.NodeIdentitySpec {
	t.Helper()
	text, err := shared.Kubectl(ctx, "", "get", "nodeidentity", node, "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var object identity.NodeIdentity
	if err := json.Unmarshal([]byte(text), &object); err != nil {
		t.Fatal(err)
	}
	return object.Spec
}

// counterDelta returns a function for the increase of a counter of all cloudcores from now on.
func counterDelta(t *testing.T, name string, labels ...string) func() float64 {
	t.Helper()
	before := sumMetric(t.Context(), name, labels...)
	return func() float64 { return sumMetric(t.Context(), name, labels...) - before }
}

// awaitCounter waits until a counter has risen by at least this much.
func awaitCounter(t *testing.T, what string, risen func() float64, by float64) {
	t.Helper()
	eventually(t, what+" is counted", func(context.Context) string {
		if n := risen(); n < by {
			return fmt.Sprintf("%v of %v", n, by)
		}
		return ""
	})
}

// cloudcoreLog returns the log of a cloudcore, counted from 0.
func cloudcoreLog(i int) ([]byte, error) {
	return os.ReadFile(filepath.Join(shared.Dir(), "logs", fmt.Sprintf("cloudcore-%d.log", i+1)))
}

// logEnds returns the present lengths of the cloudcores' logs.
func logEnds(t *testing.T) []int {
	t.Helper()
	ends := make([]int, shared.Spec().Cloudcores)
	for i := range ends {
		text, err := cloudcoreLog(i)
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = len(text)
	}
	return ends
}

// awaitLogged waits until a cloudcore has logged a line with all these words. The same message is logged only once in ten minutes, so
// the words must be specific to this test.
func awaitLogged(t *testing.T, words ...string) {
	t.Helper()
	awaitLoggedSince(t, make([]int, shared.Spec().Cloudcores), words...)
}

// awaitLoggedSince is awaitLogged for messages that are logged each time: lines before these ends do not count.
func awaitLoggedSince(t *testing.T, ends []int, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q is logged", words), func(context.Context) string {
		for i, end := range ends {
			text, err := cloudcoreLog(i)
			if err != nil {
				return err.Error()
			}
			for line := range strings.Lines(string(text[min(end, len(text)):])) {
				if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
					return ""
				}
			}
		}
		return "it is not"
	})
}
