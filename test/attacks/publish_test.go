package attacks_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/subject"
)

// TestAttackerSharesCellWithVictim: the isolation between cells must not be what stops these attacks.
func TestAttackerSharesCellWithVictim(t *testing.T) {
	const cells = 4 // of the development cluster
	if a, b := subject.CellAccount(victim, cells), subject.CellAccount(stolen, cells); a != b {
		t.Errorf("%s is in %s, %s in %s", victim, a, stolen, b)
	}
}

// forbiddenSubjects are subjects on which a message would have an effect or an answer if they were open to an attacker.
func forbiddenSubjects() []string {
	list := []string{
		"$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.CONNZ", "$SYS.REQ.ACCOUNT.FROND.CONNZ", "$SYS.REQ.ACCOUNT.PING.STATZ", "$SYS.REQ.USER.INFO",
		"$SYS.REQ.CLAIMS.UPDATE", "$SYS.REQ.USER.AUTH", "$SYS.DEBUG.SUBSCRIBERS",
		"$KV.x.y", "$O.x.C.y", "$NRG.V.x.y", "$JSC.x", "$LDS.x", "$GR.x.y", "_R_.x", "call.node.x", "desired.x", "tunnelsilent." + victim + ".x",
		"call.cloud." + victim + ".enrol", "call.cloud.x.kube", "call.cloud." + victim + ".telemetry", "call.cloud." + victim + ".messages", "messages." + victim + ".x.user.y", "messages." + stolen + ".x.user.y", "telemetry." + victim + ".default.of-" + victim + ".valve", "telemetry." + stolen + ".default.of-" + stolen + ".valve", "call.cloud..kube", "dead.cloud.desired",
	}
	for _, api := range []string{"$JS.API.", "$JS.hub.API.", "$JS.thief.API."} {
		for _, what := range []string{
			"INFO", "STREAM.NAMES", "STREAM.LIST", "STREAM.INFO.DESIRED-0", "STREAM.DELETE.DESIRED-0", "STREAM.PURGE.DESIRED-0", "STREAM.UPDATE.DESIRED-0",
			"STREAM.CREATE.THIEF", "STREAM.PURGE.TELEMETRY-0", "STREAM.PURGE.MESSAGES-0", "CONSUMER.MSG.NEXT.MESSAGES-0.rule-x", "CONSUMER.DELETE.MESSAGES-0.rule-x", "STREAM.MSG.GET.DESIRED-0", "STREAM.MSG.DELETE.DESIRED-0", "STREAM.SNAPSHOT.DESIRED-0", "STREAM.LEADER.STEPDOWN.DESIRED-0",
			"STREAM.PEER.REMOVE.DESIRED-0", "META.LEADER.STEPDOWN", "SERVER.REMOVE", "ACCOUNT.PURGE.FROND", "DIRECT.GET.DESIRED-0",
			"DIRECT.GET.DESIRED-0.desired." + victim + ".core.secrets.default.of-" + victim, "CONSUMER.NAMES.DESIRED-0", "CONSUMER.LIST.DESIRED-0",
			"CONSUMER.INFO.DESIRED-0." + victim, "CONSUMER.MSG.NEXT.DESIRED-0." + victim, "CONSUMER.CREATE.DESIRED-0", "CONSUMER.CREATE.DESIRED-0.thief",
			"CONSUMER.CREATE.DESIRED-0.thief.desired." + victim + ".>", "CONSUMER.DURABLE.CREATE.DESIRED-0.thief", "CONSUMER.DELETE.DESIRED-0." + victim,
			"CONSUMER.PAUSE.DESIRED-0." + victim, "CONSUMER.RESET.DESIRED-0." + victim, "CONSUMER.UNPIN.DESIRED-0." + victim,
		} {
			list = append(list, api+what)
		}
	}
	for _, form := range []string{
		"desired.%s.core.secrets.default.of-" + victim, "report.%s.core.pods.default.on-" + victim, "event.%s.core.events.default.x", "beat.%s", "dead.%s.report",
		"call.cloud.%s.attach", "call.cloud.%s.kube", "call.cloud.%s.scopes", "call.cloud.%s.same", "call.cloud.%s.piece", "call.cloud.%s.ping", "call.cloud.%s.renew",
		"call.node.%s.report", "call.node.%s.resync", "call.node.%s.reports", "call.node.%s.who", "call.node.%s.fence", "call.node.%s.died",
		"consumer.%s.next", "consumer.%s.info", "consumer.%s.ack.1.1.1.1.1", "$JS.ACK.DESIRED-0.%s.1.1.1.1.1", "tunnel.%s.AAAAAAAAAA.BBBBBBBBBB", "tunnelup.%s.AAAAAAAAAA.BBBBBBBBBB", "_INBOX.%s.x",
	} {
		list = append(list, fmt.Sprintf(form, victim))
	}
	return list
}

// apiPayload is a payload that is valid for several of them.
func apiPayload() []byte {
	return fmt.Appendf(nil, `{"name":"thief","stream_name":"DESIRED-0","last_by_subj":"desired.%[1]s.core.secrets.default.of-%[1]s","batch":100,"seq":1,
		"config":{"name":"thief","durable_name":"thief","filter_subject":"desired.%[1]s.>","deliver_subject":"_INBOX.%[2]s.loot","ack_policy":"none"},"subjects":["desired.>"]}`, victim, stolen)
}

// TestPublish_ForbiddenSubjectsAreRefused publishes on each forbidden subject, as a leaf and as a leaf that claims to be a hub.
func TestPublish_ForbiddenSubjectsAreRefused(t *testing.T) {
	l := stealCredentials(t, stolen)
	l.addresses = hubLeafAddresses(t)
	for name, more := range map[string]map[string]any{"as a leaf": nil, "as a hub": {"is_hub": true}} {
		t.Run(name, func(t *testing.T) {
			l.sourceIP = newAddress() // refusals are logged once for each address
			before, logs := listTopology(t), logEnds(t)
			risen := counterDelta(t, "frond_identity_offences_total", "reason=violation", "node="+stolen)
			claims := counterDelta(t, "frond_identity_kicks_total", "reason=claims-hub")
			checkUnharmed(t, func() {
				refused := publishToEach(t, l, more, forbiddenSubjects())
				t.Logf("%d of %d were refused", refused, len(forbiddenSubjects()))
				if more == nil {
					if refused == 0 {
						t.Error("the hub has refused nothing")
					}
					awaitCounter(t, "what the hub refused", risen, float64(refused)/2)
					awaitLogged(t, "the hub closed a link for what came over it", stolen, l.sourceIP)
					return
				}
				// The hub refuses silently. A link that stays is detected.
				th := l.mustOpenLink(t, more)
				if !pollWithin(t.Context(), waitTimeout, func() bool { return isClosed(th) }) {
					t.Error("the link of a leaf that says it were the hub stays")
				}
				awaitCounter(t, "a leaf that says it were the hub", claims, 1)
				awaitLoggedSince(t, logs, "link closed", "claims-hub")
			})
			if after := listTopology(t); !slices.Equal(before, after) {
				t.Errorf("the hub's streams changed:\n%v\n%v", before, after)
			}
		})
	}
}

// publishToEach publishes to each subject over a link of its own, and counts the links that the hub closed: all, for an ordinary leaf.
func publishToEach(t *testing.T, l loot, more map[string]any, subjects []string) (refused int) {
	t.Helper()
	for _, subj := range subjects {
		th := l.mustOpenLink(t, more)
		th.subscribe(th.inbox(), "")
		if said := th.flush(t.Context()); said != "" && more == nil {
			t.Errorf("the thief's own inbox: %s", said)
		}
		th.publish(subj, th.inbox(), apiPayload())
		th.publish(subj, "", apiPayload(), "Frond-Version: 1", "Frond-Op: delete", "Frond-Cloud: 1", "Nats-Rollup: all")
		if said := th.flush(t.Context()); said != "" {
			refused++
		} else if more == nil && !allowedToAll(subj) {
			t.Errorf("%s was taken", subj)
		}
		for _, m := range th.received("") {
			if !isRefusal(m) {
				t.Errorf("%s was answered on %s: %.300q %.300q", subj, m.subject, m.header, m.data)
			}
		}
	}
	return refused
}

// allowedToAll are subjects that nats-server accepts from each leaf, whatever its permissions: they end in its own account, which has no
// subscriber for them.
func allowedToAll(subj string) bool {
	return strings.HasPrefix(subj, "$JS.ACK.") || strings.HasPrefix(subj, "_R_.")
}

// isRefusal recognizes answers that only report a refusal or a missing responder.
func isRefusal(m leafMessage) bool {
	return strings.Contains(string(m.header), " 503") || strings.Contains(string(m.data), `"error"`) && !strings.Contains(string(m.data), `"config"`)
}

// listTopology lists the streams of the hub and their consumers.
func listTopology(t *testing.T) (list []string) {
	t.Helper()
	c, err := natscontext.NewFromFile(shared.NATSContext())
	if err != nil {
		t.Fatal(err)
	}
	nc, err := c.Connect(nats.MaxReconnects(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	streams := js.ListStreams(t.Context())
	for s := range streams.Info() {
		list = append(list, fmt.Sprint(s.Config.Name, " made ", s.Created, " ", s.Config.Subjects))
		if strings.HasPrefix(s.Config.Name, "KV_") {
			continue // a watcher of a bucket replaces its consumer after some silence
		}
		stream, err := js.Stream(t.Context(), s.Config.Name)
		if err != nil {
			t.Fatal(err)
		}
		for name := range stream.ConsumerNames(t.Context()).Name() {
			list = append(list, s.Config.Name+" for "+name)
		}
	}
	if err := streams.Err(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return list
}
