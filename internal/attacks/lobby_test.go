package attacks_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/internal/install"
	"github.com/frond-edge/frond/streams"
)

// TestTheLobbyLeadsNowhere comes in by a token, as a machine that is no node yet, and tries all that a stolen gateway tries.
func TestTheLobbyLeadsNowhere(t *testing.T) {
	l := stranger(t, newName(), issue(t, install.TokenOptions{}, time.Now()))
	enter(t, l)
	l.from = elsewhere()
	t.Run("hears nothing", func(t *testing.T) { deaf(t, l, nil, "") })
	before := fmt.Sprint(topology(t))
	risen := meter(t, "frond_identity_offences_total", "reason=violation")
	l.from = elsewhere() // what is refused is logged once for each address
	unharmed(t, func() {
		subjects := append(orders(), "call.cloud."+stranger(t, "x", "").public()+".enrol", "_INBOX."+stranger(t, "x", "").public()+".x",
			"report."+l.node+".core.pods.default.x", "beat."+l.node, "call.cloud."+l.node+".kube")
		refused := moved(t, l, nil, subjects)
		if refused == 0 {
			t.Error("the hub has refused nothing")
		}
		rises(t, "what the hub refused", risen, float64(refused)/2)
	})
	logged(t, "the hub closed a link for what came over it", `"node":""`, l.from)
	if after := fmt.Sprint(topology(t)); after != before {
		t.Errorf("the hub's streams changed:\n%v\n%v", before, after)
	}
	// Within the lobby there are two questions. Others go nowhere.
	th := enter(t, l)
	denies(t, th, identity.VerbEnrol, nil, "garbage") // the way is open
	for _, verb := range []string{streams.VerbPing, streams.VerbAttach, streams.VerbKube, streams.VerbScopes, streams.VerbPiece, streams.VerbPart, "unknown"} {
		th.publish(streams.CallSubject(th.node, verb), streams.InboxPrefix(th.node)+"."+verb, []byte("{}"))
	}
	denies(t, th, identity.VerbEnrol, nil, "garbage")
	for _, m := range th.received("") {
		if !harmless(m) && !strings.Contains(m.subject, ".a") {
			t.Errorf("an answer on %s: %.200q", m.subject, m.data)
		}
	}
}

// TestTheLobbyTakesAnyInput asks what no program of ours asks, and then as fast as a link carries it.
func TestTheLobbyTakesAnyInput(t *testing.T) {
	l := stranger(t, newName(), issue(t, install.TokenOptions{}, time.Now()))
	th := enter(t, l)
	long := strings.Repeat("x", 1<<20)
	other := stranger(t, l.node, l.token)
	unharmed(t, func() {
		for name, tt := range map[string]struct {
			request []byte
			reason  string
		}{
			"nothing":                {nil, "garbage"},
			"null":                   {[]byte("null"), "garbage"},
			"a list":                 {[]byte("[]"), "garbage"},
			"half of it":             {[]byte(`{"node":`), "garbage"},
			"nested":                 {[]byte(nested(10_000)), "garbage"},
			"numbers":                {[]byte(`{"node":1,"key":2,"token":3}`), "garbage"},
			"nobody":                 {[]byte("{}"), "caller"},
			"a megabyte":             {fmt.Appendf(nil, `{"x":%q}`, long), "caller"},
			"a name of a megabyte":   {fmt.Appendf(nil, `{"node":%q,"key":%q,"token":%q}`, long, l.public(), l.token), "node-name"},
			"a token of a megabyte":  {fmt.Appendf(nil, `{"node":"x","key":%q,"token":%q}`, l.public(), long), "proof"},
			"another's key":          {other.enrolment(t), "caller"},
			"without a signature":    {fmt.Appendf(nil, `{"node":%q,"key":%q,"token":%q}`, l.node, l.public(), l.token), "proof"},
			"a signature for a node": {bytes.Replace(l.enrolment(t), []byte(l.node), []byte(victim), 1), "proof"},
		} {
			t.Run(name, func(t *testing.T) { denies(t, th, identity.VerbEnrol, tt.request, tt.reason) })
		}
		foreign := meter(t, "frond_calls_total", "result=foreign-reply")
		th.publish(streams.CallSubject(th.node, identity.VerbEnrol), streams.InboxPrefix(victim)+".x", l.enrolment(t))
		rises(t, "an answer to another's inbox", foreign, 1)
	})
	for name, text := range map[string]string{
		"9 MB": "9000000", "4 GB": "4294967296", "less than nothing": "-5", "no number": "x", "two lines": "5\r\nx",
	} {
		th := enter(t, l)
		th.say("LMSG %s %s\r\nx", streams.CallSubject(th.node, identity.VerbEnrol), text)
		if !within(t.Context(), patience, func() bool { return over(th) || th.flush(t.Context()) != "" }) {
			t.Errorf("declared %s: the link stays open", name)
		}
	}
	t.Run("a flood", func(t *testing.T) { flooded(t, l) })
}

// honest is how many calls the victim makes over each link.
const honest = 30

// served has the victim call the cloud, over a link of its own to each server of the hub. Calls are not durable: one may have to be made
// again. Each is answered in the end.
func served(t *testing.T) {
	t.Helper()
	l := steal(t, victim)
	for range l.addresses {
		th, err := l.tryIn(t.Context(), nil) // it hears its own secrets
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = th.conn.Close()
			<-th.over
		}()
		for range honest {
			th.call(t, streams.VerbPing, []byte("{}"))
		}
	}
}

// over says that the hub has closed the link.
func over(th *thief) bool {
	select {
	case <-th.over:
		return true
	default:
		return false
	}
}

// flooded asks as fast as it can for some seconds, meanwhile the victim is served.
func flooded(t *testing.T, l loot) {
	t.Helper()
	th := enter(t, l)
	refused, busy := meter(t, "frond_identity_refusals_total"), meter(t, "frond_calls_total", "result=busy")
	end, n := time.Now().Add(3*time.Second), 0
	request := l.enrolment(t)
	request[len(request)/2] ^= 1
	unharmed(t, func() {
		for ; time.Now().Before(end); n++ {
			th.publish(streams.CallSubject(th.node, identity.VerbEnrol), streams.InboxPrefix(th.node)+".flood", request)
		}
		served(t)
	})
	rises(t, "a flood", func() float64 { return refused() + busy() }, 64)
	t.Logf("%d requests, %v refused, %v too many", n, refused(), busy())
}
