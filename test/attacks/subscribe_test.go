package attacks_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// wantedSubjects are subjects with information for an attacker.
func wantedSubjects() []string {
	list := []string{
		">", "*", "*.>", "*.*", "*.*.>", "*.*.*.>", "$SYS.>", "$SYS.ACCOUNT.>", "$SYS.REQ.>", "$SYS.REQ.USER.AUTH", "$JS.>", "$JS.API.>", "$JS.hub.API.>",
		"$JS.API.CONSUMER.MSG.NEXT.>", "$JS.ACK.>", "$JS.EVENT.>", "$JSC.>", "$NRG.>", "$KV.>", "$O.>", "$G.>", "$LDS.>", "$GR.>", "_GR_.>", "_R_.>", "_INBOX.>", "_INBOX.*.>",
		"call.>", "call.cloud.>", "call.cloud.*.*", "call.cloud.*.kube", "call.cloud.*.enrol", "call.node.>", "call.node.*.report", "tunnel.>", "tunnelup.>",
		"tunnelsilent.>", "consumer.>", "consumer.*.next", "desired.>", "report.>", "event.>", "beat.>", "dead.>", "outbox.>",
		"telemetry.>", "messages.>",
	}
	for _, form := range []string{
		"desired.%s.>", "desired.%s.core.secrets.default.*", "report.%s.>", "event.%s.>", "beat.%s", "call.cloud.%s.>", "call.cloud.%s.kube", "call.node.%s.>",
		"call.node.%s.report", "tunnel.%s.>", "tunnelup.%s.>", "_INBOX.%s.>", "_INBOX.%s.x", "consumer.%s.>", "dead.%s.>", "$JS.ACK.DESIRED-0.%s.>",
		"telemetry.%s.>", "messages.%s.>", "call.cloud.%s.telemetry", "call.cloud.%s.messages",
	} {
		list = append(list, fmt.Sprintf(form, victim))
	}
	return list
}

// TestSubscribe_ForeignSubjectsAreSilent subscribes to every subject, with and without a queue group, as a leaf and as a leaf that claims to
// be a hub, and listens while the victim receives its secret.
func TestSubscribe_ForeignSubjectsAreSilent(t *testing.T) {
	l := stealCredentials(t, stolen)
	for name, more := range map[string]map[string]any{
		"as a leaf": nil, "as a hub": {"is_hub": true}, "as a cluster": {"cluster": "thieves"}, "isolated": {"isolate": true},
	} {
		for _, queue := range []string{"", "cloudcore"} {
			t.Run(name+" "+queue, func(t *testing.T) {
				expectSilence(t, l, more, queue)
			})
		}
	}
}

func expectSilence(t *testing.T, l loot, more map[string]any, queue string) {
	t.Helper()
	type ear struct {
		subject string
		thief   *attacker
	}
	var ears []ear
	for _, subject := range wantedSubjects() {
		th := l.mustOpenLink(t, more)
		th.subscribe(subject, queue)
		if said := th.flush(t.Context()); said == "" {
			ears = append(ears, ear{subject, th})
		}
	}
	changeVictim(t)
	checkVictimServed(t)
	for _, e := range ears {
		if said := e.thief.flush(t.Context()); said != "" {
			t.Logf("%s: the link was closed: %s", e.subject, said)
		}
		for _, m := range e.thief.received("") {
			if !isOwnSubject(e.thief.node, m.subject) {
				t.Errorf("on %s, %s was heard (reply %q, %d bytes: %.120q)", e.subject, m.subject, m.reply, len(m.data), m.data)
			}
		}
	}
	t.Logf("%d of %d wishes were refused", len(wantedSubjects())-len(ears), len(wantedSubjects()))
}

// isOwnSubject reports whether a subject is the link's own, whose messages it may receive.
func isOwnSubject(node, subject string) bool {
	for _, prefix := range []string{"_INBOX.", "call.node.", "tunnel."} {
		if strings.HasPrefix(subject, prefix+node+".") {
			return true
		}
	}
	return false
}

// pollWithin waits for a condition, and reports whether it became true.
func pollWithin(ctx context.Context, limit time.Duration, holds func() bool) bool {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}
