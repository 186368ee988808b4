package attacks_test

import (
	"fmt"
	"testing"

	"github.com/frond-edge/frond/streams/subject"
)

// TestReplySubject_NeverReachesOthers: the sender chooses the reply subject. The attacker names subjects of the other gateway and of
// the hub in every message that it may send.
func TestReplySubject_NeverReachesOthers(t *testing.T) {
	l := stealCredentials(t, stolen)
	replies := []string{
		"call.node.%s.fence", "call.node.%s.resync", "call.node.%s.report", "_INBOX.%s.x", "tunnel.%s.AAAAAAAAAA.BBBBBBBBBB", "desired.%s.core.secrets.default.of-" + victim,
		"report.%s.core.pods.default.on-" + victim, "beat.%s", "call.cloud.%s.attach", "consumer.%s.ack.1.1.1.1.1", "$JS.ACK.DESIRED-0.%s.1.1.1.1.1",
		"$JS.API.CONSUMER.DELETE.DESIRED-0.%s", "$JS.API.STREAM.DELETE.DESIRED-0", "$SYS.REQ.SERVER.PING", "$KV.x.%s",
	}
	verbs := []string{subject.VerbPing, subject.VerbAttach, subject.VerbKube, subject.VerbScopes, subject.VerbSame, subject.VerbPiece, "unknown"}
	before := listTopology(t)
	checkUnharmed(t, func() {
		th := l.mustOpenLink(t, nil)
		for _, form := range replies {
			reply := form
			if n := fmt.Sprintf(form, victim); n != form+"%!(EXTRA string="+victim+")" {
				reply = n
			}
			for _, verb := range verbs {
				th.publish(subject.CallSubject(stolen, verb), reply, []byte("{}"))
			}
			for _, subj := range []string{
				"consumer." + stolen + ".next", "consumer." + stolen + ".info", subject.HeartbeatSubject(stolen), "dead." + stolen + ".report",
				"report." + stolen + ".core.pods.default.x", "event." + stolen + ".core.events.default.x",
			} {
				th.publish(subj, reply, []byte(`{"batch":10}`), "Frond-Version: 1", "Frond-Cloud: 1")
			}
			if said := th.flush(t.Context()); said != "" {
				t.Logf("%s: %s", reply, said)
				th = l.mustOpenLink(t, nil)
			}
		}
	})
	if after := fmt.Sprint(listTopology(t)); after != fmt.Sprint(before) {
		t.Errorf("the hub's streams changed:\n%v\n%v", before, after)
	}
	checkVictimServed(t)
}
