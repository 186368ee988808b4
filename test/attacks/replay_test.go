package attacks_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/install/jointoken"
	"github.com/frond-edge/frond/streams/subject"
)

// connectAdmin connects to the hub as an administrator.
func connectAdmin(t *testing.T) *nats.Conn {
	t.Helper()
	c, err := natscontext.NewFromFile(shared.NATSContext())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := c.Connect(nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// desiredMessage reads the hub's message with the victim's secret.
func desiredMessage(t *testing.T, nc *nats.Conn) *jetstream.RawStreamMsg {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subject.DesiredStream)
	if err != nil {
		t.Fatal(err)
	}
	subj := subject.Of(subject.Desired, victim, wire.Key{Resource: "secrets", Namespace: "default", Name: "of-" + victim})
	msg, err := stream.GetLastMsgForSubject(t.Context(), subj)
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// headerLines formats headers for a raw publish.
func headerLines(h nats.Header) (all []string) {
	for name, values := range h {
		all = append(all, name+": "+values[0])
	}
	return all
}

// TestReplay_DesiredStateIsIgnored replays a message of the hub to its own gateway, to the attacker's, and to every subject on which a
// gateway listens. The test obtains the message as administrator: the attacker never receives it.
func TestReplay_DesiredStateIsIgnored(t *testing.T) {
	nc := connectAdmin(t)
	changeVictim(t)
	old := desiredMessage(t, nc)
	changeVictim(t)
	// A server of the hub may answer with an older message for a moment.
	eventually(t, "the hub has the next", func(context.Context) string {
		if now := desiredMessage(t, nc); now.Sequence <= old.Sequence {
			return "it has the same"
		}
		return ""
	})
	now := desiredMessage(t, nc)
	l := stealCredentials(t, stolen)
	targets := []string{
		old.Subject, strings.Replace(old.Subject, victim, stolen, 1), "report." + strings.TrimPrefix(old.Subject, "desired."), "call.node." + victim + ".report",
		subject.InboxPrefix(victim) + ".x", "$JS.API.CONSUMER.MSG.NEXT.DESIRED-0." + victim, "consumer." + victim + ".next",
		"$JS.hub.API.CONSUMER.MSG.NEXT.DESIRED-0." + victim, "outbox." + old.Subject, "tunnel." + victim + ".AAAAAAAA.BBBBBBBBBBBBBBBBBBBBBB",
	}
	risen := counterDelta(t, "frond_identity_offences_total", "reason=violation", "node="+stolen)
	for _, subj := range targets {
		for _, epoch := range []string{old.Header.Get("Frond-Cluster"), "another"} {
			header := nats.Header{}
			maps.Copy(header, old.Header)
			header.Set("Frond-Cluster", epoch)
			th := l.mustOpenLink(t, nil)
			// A consumer reads a message's stream sequence from the reply subject: a high one makes the message look new.
			th.publish(subj, fmt.Sprintf("$JS.ACK.DESIRED-0.%s.1.%d.1.1.0", victim, now.Sequence+100), old.Data, headerLines(header)...)
			if said := th.flush(t.Context()); said == "" {
				t.Errorf("%s was taken", subj)
			}
		}
	}
	awaitCounter(t, "a replay", risen, float64(len(targets)))
	if last := desiredMessage(t, nc); last.Sequence != now.Sequence {
		t.Errorf("the hub holds message %d for the victim, and %d before", last.Sequence, now.Sequence)
	}
	var want corev1.Secret
	if err := json.Unmarshal(now.Data, &want); err != nil {
		t.Fatal(err)
	}
	raw, err := shared.StoreGet(t.Context(), victim, wire.Key{Resource: "secrets", Namespace: "default", Name: "of-" + victim})
	if err != nil {
		t.Fatal(err)
	}
	var held corev1.Secret
	if err := json.Unmarshal(raw, &held); err != nil || string(held.Data["word"]) != string(want.Data["word"]) {
		t.Errorf("the victim holds %q, %v", base64.StdEncoding.EncodeToString(held.Data["word"]), err)
	}
	changeVictim(t)
}

// TestReplay_EnrolmentIsRefused replays gateways' requests about their keys, and the answers, over a link of another key.
func TestReplay_EnrolmentIsRefused(t *testing.T) {
	before := nodeIdentity(t.Context(), t, victim)
	token := issueToken(t, jointoken.Options{Uses: 3}, time.Now())
	first := newStranger(t, newName(), token)
	answer := openWithToken(t, first).callCloud(t, identity.VerbEnrol, first.enrolRequest(t))
	if e := decodeEnrolment(t, answer); e.Reason != "" {
		t.Fatal(e.Reason)
	}
	honest := stealCredentials(t, victim) // to build its requests
	other := newStranger(t, newName(), token)
	inLobby, inCell := openWithToken(t, other), stealCredentials(t, stolen).mustOpenLink(t, nil)
	for name, tt := range map[string]struct {
		th      *attacker
		verb    string
		request []byte
		reason  string
	}{
		"an enrolment in the lobby":    {inLobby, identity.VerbEnrol, first.enrolRequest(t), "caller"},
		"a renewal in the lobby":       {inLobby, identity.VerbRenew, first.renewRequest(t), "caller"},
		"the victim's in the lobby":    {inLobby, identity.VerbRenew, honest.renewRequest(t), "caller"},
		"an enrolment from a cell":     {inCell, identity.VerbEnrol, first.enrolRequest(t), "caller"},
		"the victim's from a cell":     {inCell, identity.VerbRenew, honest.renewRequest(t), "caller"},
		"the answer as a question":     {inCell, identity.VerbRenew, answer, "caller"},
		"an enrolment as a renewal":    {inLobby, identity.VerbRenew, other.enrolRequest(t), "caller"},
		"a renewal as an enrolment":    {inLobby, identity.VerbEnrol, other.renewRequest(t), "proof"},
		"its own renewal, not one yet": {inLobby, identity.VerbRenew, other.renewRequest(t), "unknown"},
	} {
		t.Run(name, func(t *testing.T) { expectDenied(t, tt.th, tt.verb, tt.request, tt.reason) })
	}
	// An earlier answer, replayed to a gateway that is asking now.
	risen := counterDelta(t, "frond_identity_offences_total", "reason=violation")
	for _, subj := range []string{subject.InboxPrefix(victim) + ".x", subject.InboxPrefix(other.publicKey()) + ".x", subject.InboxPrefix(stolen) + ".x"} {
		th := stealCredentials(t, stolen).mustOpenLink(t, nil)
		th.publish(subj, "", answer)
		if said := th.flush(t.Context()); said == "" {
			t.Errorf("an answer on %s was taken", subj)
		}
	}
	awaitCounter(t, "a forged answer", risen, 1)
	if after := nodeIdentity(t.Context(), t, victim); after.Key != before.Key || !after.Expires.Equal(&before.Expires) || !after.Issued.Equal(&before.Issued) {
		t.Errorf("the victim is another: %+v, %+v", before, after)
	}
}

// TestReport_GatewayTimeIsNotTrusted sends wrong years in every timestamp, and checks what the cloud writes.
func TestReport_GatewayTimeIsNotTrusted(t *testing.T) {
	l := stealCredentials(t, stolen)
	th := l.mustOpenLink(t, nil)
	key := nodeIdentity(t.Context(), t, stolen)
	began := time.Now()
	checkUnharmed(t, func() {
		for _, years := range []int{-10, 10} {
			said := began.AddDate(years, 0, 0).UTC()
			stamp := said.Format(time.RFC3339Nano)
			th.publish(subject.HeartbeatSubject(stolen), "", fmt.Appendf(nil,
				`{"storeEpoch":"thief","sequence":1,"healthy":true,"since":%d,"time":%q}`, said.UnixMilli(), stamp), "Frond-Time: "+stamp)
			th.publish("report."+stolen+".coordination_k8s_io.leases.kube-node-lease."+stolen, "", fmt.Appendf(nil,
				`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q,"namespace":"kube-node-lease"},"spec":{"renewTime":%q}}`, stolen, stamp),
				"Frond-Version: 1", "Frond-Op: apply", "Frond-Store: thief", "Frond-Order: 9", "Frond-Time: "+stamp)
			request := strings.Replace(string(l.renewRequest(t)), "{", fmt.Sprintf(`{"now":%q,"expires":%q,"issued":%q,`, stamp, stamp, stamp), 1)
			e := decodeEnrolment(t, th.callCloud(t, identity.VerbRenew, []byte(request)))
			if e.Reason != "" || e.Expires.Before(key.Expires.Time) || e.Now.Sub(began).Abs() > time.Hour {
				t.Errorf("asked %d years off, the answer is %+v", years, e)
			}
		}
		if said := th.flush(t.Context()); said != "" {
			t.Fatal(said)
		}
	})
	now := nodeIdentity(t.Context(), t, stolen)
	if now.Key != key.Key || now.Expires.Sub(key.Expires.Time).Abs() > time.Hour || now.Issued.Sub(key.Issued.Time).Abs() > time.Hour {
		t.Errorf("its key was %+v and is %+v", key, now)
	}
	lease, err := kube.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), stolen, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if renewed := lease.Spec.RenewTime.Time; time.Since(renewed).Abs() > time.Hour {
		t.Errorf("its lease was renewed at %s", renewed)
	}
}
