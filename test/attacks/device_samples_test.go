package attacks_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams/subject"
)

// sampleSubjects are where samples and messages of the victim pass: in the hub's streams, on their way to cloudcore, and to who reads the streams.
func sampleSubjects() (list []string) {
	list = []string{"telemetry.>", "telemetry.*.default.*.*", "messages.>", "messages.*.user.>", "call.cloud.*.telemetry", "call.cloud.*.messages", "dead.>"}
	for _, form := range []string{
		"telemetry.%s.>", "telemetry.%[1]s.default.of-%[1]s.valve", "messages.%s.>", "messages.%s.user.secret", "call.cloud.%s.telemetry", "call.cloud.%s.messages",
		"$JS.ACK.TELEMETRY-0.%s.>", "$JS.ACK.MESSAGES-0.%s.>",
	} {
		list = append(list, fmt.Sprintf(form, victim))
	}
	return list
}

// TestKubeEdgeDevices_SamplesAreNotHeard: as the stolen node, an attacker listens on every subject of samples and messages, as a leaf and as one that
// claims to be a hub, while the victim's are stored. It hears none, and what it may not even ask for is counted.
func TestKubeEdgeDevices_SamplesAreNotHeard(t *testing.T) {
	createKubeEdgeDevices(t)
	samples, messages := hubStream(t, subject.TelemetryStream), hubStream(t, subject.MessagesStream)
	canary := fmt.Sprintf("canary-%d", time.Now().UnixNano())
	risen := counterDelta(t, "frond_identity_offences_total", "reason=violation", "node="+stolen)
	l := stealCredentials(t, stolen)
	ears, refused := map[string]*attacker{}, 0
	for how, more := range map[string]map[string]any{"leaf": nil, "hub": {"is_hub": true}} {
		for _, name := range sampleSubjects() {
			th := l.mustOpenLink(t, more)
			th.subscribe(name, "")
			if said := th.flush(t.Context()); said != "" {
				refused++
			}
			ears[name+" as a "+how] = th
		}
	}
	checkUnharmed(t, func() { sendAsVictim(t, canary, samples, messages) })
	for name, th := range ears {
		th.flush(t.Context())
		th.mu.Lock()
		if heard := th.rawInput.Bytes(); bytes.Contains(heard, []byte(canary)) || bytes.Contains(heard, []byte(base64.StdEncoding.EncodeToString([]byte(canary)))) {
			t.Errorf("on %s the victim's samples were heard", name)
		}
		th.mu.Unlock()
		for _, m := range th.received("") {
			if !isOwnSubject(stolen, m.subject) {
				t.Errorf("on %s, %s was heard (%d bytes)", name, m.subject, len(m.data))
			}
		}
	}
	t.Logf("%d of %d subscriptions were refused", refused, len(ears))
	if refused == 0 {
		t.Error("the hub has refused nothing")
	}
	awaitCounter(t, "what the hub refused", risen, 1)
}

// sendAsVictim stores a sample and a message with the victim's own key, as its edgecore does, and checks that the hub has both.
func sendAsVictim(t *testing.T, canary string, samples, messages jetstream.Stream) {
	t.Helper()
	own, err := stealCredentials(t, victim).openLink(t.Context(), nil) // not mustOpenLink: the victim may have its own secret
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = own.conn.Close()
		<-own.closed
	}()
	own.subscribe(own.inbox(), "")
	request := func(line string) []byte { return compressedRequest(t, senderRun(canary), line) }
	for verb, line := range map[string]string{
		subject.VerbTelemetry: `{"n":1,"s":"default","d":"of-` + victim + `","p":"valve","v":"` + canary + `","g":1}` + "\n",
		subject.VerbMessages:  `{"n":1,"m":"user/secret","f":"internal","u":"","g":1,"b":"` + base64.StdEncoding.EncodeToString([]byte(canary)) + `"}` + "\n",
	} {
		var reply struct{ Error string }
		if err := json.Unmarshal(own.callCloud(t, verb, request(line)), &reply); err != nil || reply.Error != "" {
			t.Fatalf("%s: the answer is %q, %v", verb, reply.Error, err)
		}
	}
	for name, stream := range map[string]jetstream.Stream{subject.SampleSubject(victim, "default", "of-"+victim, "valve"): samples, "messages." + victim + ".>": messages} {
		eventually(t, name+" is in the hub", func(ctx context.Context) string {
			m, err := stream.GetLastMsgForSubject(ctx, name)
			if err != nil {
				return err.Error()
			}
			if !strings.Contains(string(m.Data), canary) {
				return string(m.Data)
			}
			return ""
		})
	}
}
