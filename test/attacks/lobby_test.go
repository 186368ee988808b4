package attacks_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/install/jointoken"
	"github.com/frond-edge/frond/streams/subject"
)

// TestLobby_ReachesNothing connects with a token, as a machine that is no node yet, and tries everything that a stolen gateway tries.
func TestLobby_ReachesNothing(t *testing.T) {
	l := newStranger(t, newName(), issueToken(t, jointoken.Options{}, time.Now()))
	openWithToken(t, l)
	l.sourceIP = newAddress()
	t.Run("hears nothing", func(t *testing.T) { expectSilence(t, l, nil, "") })
	before := fmt.Sprint(listTopology(t))
	risen := counterDelta(t, "frond_identity_offences_total", "reason=violation")
	l.sourceIP = newAddress() // refusals are logged once for each address
	checkUnharmed(t, func() {
		subjects := append(forbiddenSubjects(), "call.cloud."+newStranger(t, "x", "").publicKey()+".enrol", "_INBOX."+newStranger(t, "x", "").publicKey()+".x",
			"report."+l.node+".core.pods.default.x", "beat."+l.node, "call.cloud."+l.node+".kube")
		refused := publishToEach(t, l, nil, subjects)
		if refused == 0 {
			t.Error("the hub has refused nothing")
		}
		awaitCounter(t, "what the hub refused", risen, float64(refused)/2)
	})
	awaitLogged(t, "the hub closed a link for what came over it", `"node":""`, l.sourceIP)
	if after := fmt.Sprint(listTopology(t)); after != before {
		t.Errorf("the hub's streams changed:\n%v\n%v", before, after)
	}
	// The lobby has two verbs. Other requests reach no server.
	th := openWithToken(t, l)
	expectDenied(t, th, identity.VerbEnrol, nil, "garbage") // the control: the lobby answers
	for _, verb := range []string{subject.VerbPing, subject.VerbAttach, subject.VerbKube, subject.VerbScopes, subject.VerbSame, subject.VerbPiece, subject.VerbPart, "unknown"} {
		th.publish(subject.CallSubject(th.node, verb), subject.InboxPrefix(th.node)+"."+verb, []byte("{}"))
	}
	expectDenied(t, th, identity.VerbEnrol, nil, "garbage")
	for _, m := range th.received("") {
		if !isRefusal(m) && !strings.Contains(m.subject, ".a") {
			t.Errorf("an answer on %s: %.200q", m.subject, m.data)
		}
	}
}

// TestLobby_SurvivesAnyInput sends malformed requests, and then floods the lobby.
func TestLobby_SurvivesAnyInput(t *testing.T) {
	l := newStranger(t, newName(), issueToken(t, jointoken.Options{}, time.Now()))
	th := openWithToken(t, l)
	long := strings.Repeat("x", 1<<20)
	other := newStranger(t, l.node, l.token)
	checkUnharmed(t, func() {
		for name, tt := range map[string]struct {
			request []byte
			reason  string
		}{
			"nothing":                {nil, "garbage"},
			"null":                   {[]byte("null"), "garbage"},
			"a list":                 {[]byte("[]"), "garbage"},
			"half of it":             {[]byte(`{"node":`), "garbage"},
			"nested":                 {[]byte(nestedJSON(10_000)), "garbage"},
			"numbers":                {[]byte(`{"node":1,"key":2,"token":3}`), "garbage"},
			"nobody":                 {[]byte("{}"), "caller"},
			"a megabyte":             {fmt.Appendf(nil, `{"x":%q}`, long), "caller"},
			"a name of a megabyte":   {fmt.Appendf(nil, `{"node":%q,"key":%q,"token":%q}`, long, l.publicKey(), l.token), "node-name"},
			"a token of a megabyte":  {fmt.Appendf(nil, `{"node":"x","key":%q,"token":%q}`, l.publicKey(), long), "proof"},
			"another's key":          {other.enrolRequest(t), "caller"},
			"without a signature":    {fmt.Appendf(nil, `{"node":%q,"key":%q,"token":%q}`, l.node, l.publicKey(), l.token), "proof"},
			"a signature for a node": {bytes.Replace(l.enrolRequest(t), []byte(l.node), []byte(victim), 1), "proof"},
		} {
			t.Run(name, func(t *testing.T) { expectDenied(t, th, identity.VerbEnrol, tt.request, tt.reason) })
		}
		foreign := counterDelta(t, "frond_calls_total", "result=foreign-reply")
		th.publish(subject.CallSubject(th.node, identity.VerbEnrol), subject.InboxPrefix(victim)+".x", l.enrolRequest(t))
		awaitCounter(t, "an answer to another's inbox", foreign, 1)
	})
	for name, text := range map[string]string{
		"9 MB": "9000000", "4 GB": "4294967296", "less than nothing": "-5", "no number": "x", "two lines": "5\r\nx",
	} {
		th := openWithToken(t, l)
		th.sendRaw("LMSG %s %s\r\nx", subject.CallSubject(th.node, identity.VerbEnrol), text)
		if !pollWithin(t.Context(), waitTimeout, func() bool { return isClosed(th) || th.flush(t.Context()) != "" }) {
			t.Errorf("declared %s: the link stays open", name)
		}
	}
	t.Run("a flood", func(t *testing.T) { floodCalls(t, l) })
}

// victimCalls is the number of the victim's calls over each link.
const victimCalls = 30

// checkVictimServed calls the cloud as the victim, over a link of its own to each server of the hub. Calls are not durable, so one may
// have to be repeated; each must be answered in the end.
func checkVictimServed(t *testing.T) {
	t.Helper()
	l := stealCredentials(t, victim)
	for range l.addresses {
		th, err := l.openLink(t.Context(), nil) // it receives its own secrets
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = th.conn.Close()
			<-th.closed
		}()
		for range victimCalls {
			th.callCloud(t, subject.VerbPing, []byte("{}"))
		}
	}
}

// isClosed reports whether the hub has closed the link.
func isClosed(th *attacker) bool {
	select {
	case <-th.closed:
		return true
	default:
		return false
	}
}

// floodCalls sends calls as fast as possible for some seconds, while the victim is served.
func floodCalls(t *testing.T, l loot) {
	t.Helper()
	th := openWithToken(t, l)
	refused, busy := counterDelta(t, "frond_identity_refusals_total"), counterDelta(t, "frond_calls_total", "result=busy")
	end, n := time.Now().Add(3*time.Second), 0
	request := l.enrolRequest(t)
	request[len(request)/2] ^= 1
	checkUnharmed(t, func() {
		for ; time.Now().Before(end); n++ {
			th.publish(subject.CallSubject(th.node, identity.VerbEnrol), subject.InboxPrefix(th.node)+".flood", request)
		}
		checkVictimServed(t)
	})
	awaitCounter(t, "a flood", func() float64 { return refused() + busy() }, 64)
	t.Logf("%d requests, %v refused, %v too many", n, refused(), busy())
}
