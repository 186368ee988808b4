package hubconf_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/hubtest"
)

// foreignSubjects are subjects of another gateway, and of no gateway, on which a stolen key must have no effect.
func foreignSubjects(node string) []string {
	var all []string
	for _, s := range []string{
		"report.%s.core.pods.default.p", "event.%s.core.events.default.e", "beat.%s", "call.cloud.%s.attach", "call.cloud.%s.kube",
		"dead.%s.report", "consumer.%s.next", "consumer.%s.info", "consumer.%s.ack.1.1.1.1.0", "tunnelup.%s.replica.id",
		"call.node.%s.resync", "tunnel.%s.replica.id", "_INBOX.%s.x", "desired.%s.core.secrets.default.s",
		"$JS.API.CONSUMER.MSG.NEXT.DESIRED-0.%s", "$JS.hub.API.CONSUMER.MSG.NEXT.DESIRED-0.%s", "$JS.API.CONSUMER.INFO.DESIRED-0.%s",
		"$JS.API.CONSUMER.DELETE.DESIRED-0.%s", "$JS.hub.API.CONSUMER.DELETE.DESIRED-0.%s",
		"$JS.API.DIRECT.GET.DESIRED-0.desired.%s.core.secrets.default.s", "$JS.hub.API.DIRECT.GET.DESIRED-0.desired.%s.core.secrets.default.s",
		"$JS.ACK.DESIRED-0.%s.1.1.1.1.0", "$KV.registry.scopes.%s",
	} {
		all = append(all, fmt.Sprintf(s, node))
	}
	return all
}

var sharedSubjects = []string{
	"desired." + thief + ".core.pods.default.p", "call.node." + thief + ".resync", "tunnel." + thief + ".replica.id", "consumer." + thief + ".delete",
	"$JS.API.INFO", "$JS.hub.API.INFO", "$JS.API.STREAM.NAMES", "$JS.hub.API.STREAM.NAMES", "$JS.API.STREAM.DELETE.DESIRED-0",
	"$JS.hub.API.STREAM.PURGE.DESIRED-0", "$JS.hub.API.STREAM.MSG.GET.DESIRED-0", "$JS.API.DIRECT.GET.DESIRED-0",
	"$JS.hub.API.DIRECT.GET.DESIRED-0", "$JS.hub.API.CONSUMER.CREATE.DESIRED-0.evil", "$JS.hub.API.STREAM.CREATE.EVIL",
	"$SYS.REQ.SERVER.PING", "$SYS.REQ.USER.AUTH", "$SYS.REQ.USER.INFO", "$SYS.REQ.SERVER.PING.KICK", "tunnelsilent.x.y", "_R_.abcdef.ghi", "$KV.members.x",
}

// A stolen key, on a connection that follows no rule, publishes and sends requests on every subject that is not its gateway's own.
func TestHub_StolenKeyPublishesForOneGateway(t *testing.T) {
	w := startTestHub(t)
	w.recordMessages()
	same, other := otherNodes()
	subjects := append(append(append([]string{}, sharedSubjects...), foreignSubjects(same)...), foreignSubjects(other)...)
	heard := map[string]func() []string{}
	for node, nc := range w.honestConns {
		heard[node] = w.recordInbound(nc, node)
	}
	obeyed := w.countCommands(same)
	before := w.describeState()
	links := map[string]*hubtest.RawLeaf{}
	for i, subj := range subjects {
		r := w.hub.ConnectRawLeaf(i%3, thief, w.thiefKey)
		r.Send("LS+ " + subject.InboxPrefix(thief) + ".>")
		r.Publish(subj, subject.InboxPrefix(thief)+".answer", "evil")
		r.Send("PING")
		links[subj] = r
	}
	// Permitted messages arrive after all forbidden ones.
	last := w.hub.ConnectRawLeaf(0, thief, w.thiefKey)
	last.Publish("beat."+thief, "", "honest")
	w.eventually("the beat", func() bool { return len(w.messagesWith("honest")) == 1 })
	for subj, r := range links {
		quiet := strings.HasPrefix(subj, "$JS.ACK.") || strings.HasPrefix(subj, "_R_.") || subj == "consumer."+thief+".delete"
		if !quiet {
			w.eventually("the link is closed for "+subj, func() bool { return r.CloseReason() != "" })
		}
	}
	waitForStragglers()
	for subj, r := range links {
		if got := r.Messages(); len(got) != 0 {
			t.Errorf("%s is answered: %q", subj, got)
		}
	}
	if got := w.messagesWith("evil"); len(got) != 0 {
		t.Errorf("FROND has heard %q", got)
	}
	for node := range heard {
		if got := heard[node](); len(got) != 0 {
			t.Errorf("%s has heard %q", node, got)
		}
	}
	if after := w.describeState(); after != before {
		t.Errorf("the hub holds\n%s\nwhere it held\n%s", after, before)
	}
	if obeyed() != 0 {
		t.Error("an order was obeyed")
	}
}

// The same connection subscribes to the subjects of others, alone and in queue groups.
func TestHub_StolenKeySubscribesForOneGateway(t *testing.T) {
	w := startTestHub(t)
	same, other := otherNodes()
	listen := []string{
		">", "*.>", "desired.>", "report.>", "event.>", "beat.*", "call.>", "call.cloud.*.*", "call.node.*.*", "tunnel.>", "tunnelup.>", "dead.>",
		"_INBOX.>", "_INBOX.*.>", "consumer.>", "$JS.>", "$JS.API.>", "$JS.hub.API.>", "$SYS.>", "$KV.>", "_R_.>", "$JS.ACK.>", "call.node." + thief + ".>.x",
	}
	for _, node := range []string{same, other} {
		listen = append(listen, "desired."+node+".>", "report."+node+".>", "_INBOX."+node+".>", "call.node."+node+".*", "call.cloud."+node+".>",
			"tunnel."+node+".>", "consumer."+node+".>", "beat."+node)
	}
	links := map[string]*hubtest.RawLeaf{}
	for i, subj := range listen {
		for _, queue := range []string{"", " cloudcore 1", " evil 1"} {
			r := w.hub.ConnectRawLeaf(i%3, thief, w.thiefKey)
			r.Send("LS+ " + subj + queue)
			r.Send("PING")
			links[subj+queue] = r
		}
	}
	waitForStragglers()
	answer, err := w.cloud.QueueSubscribe("call.cloud.*.*", "cloudcore", func(m *nats.Msg) { _ = m.Respond([]byte("answer")) })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = answer.Unsubscribe() }()
	for node, nc := range w.honestConns {
		obeyed := w.countCommands(node)
		w.eventually("an order", func() bool {
			if err := call.SendCommand(w.cloud, node, call.VerbResync, nil); err != nil {
				t.Fatal(err)
			}
			return obeyed() > 0
		})
		w.eventually("an answer", func() bool {
			_, err := nc.Request("call.cloud."+node+".ping", []byte("question"), time.Second)
			return err == nil
		})
		w.eventually("a report", func() bool {
			_, err := nc.Request("report."+node+".core.pods.default.p", []byte("status"), time.Second)
			return err == nil
		})
		w.eventually("a delivery", func() bool {
			m, err := nc.Request("consumer."+node+".next", []byte(`{"batch":1,"expires":1000000000}`), 2*time.Second)
			return err == nil && string(m.Data) == "secret of "+node
		})
		if err := nc.Publish("beat."+node, []byte("beat")); err != nil {
			t.Fatal(err)
		}
	}
	waitForStragglers()
	for subj, r := range links {
		if got := r.Messages(); len(got) != 0 {
			t.Errorf("who listens to %q hears %q", subj, got)
		}
	}
}

// A request that a stolen key may send names another gateway's subject for the reply.
func TestHub_ForeignReplySubjectsGetNoAnswer(t *testing.T) {
	w := startTestHub(t)
	before := w.describeState()
	w.recordMessages()
	same, other := otherNodes()
	heard, obeyed := map[string]func() []string{}, map[string]func() int{}
	for node, nc := range w.honestConns {
		heard[node], obeyed[node] = w.recordInbound(nc, node), w.countCommands(node)
	}
	r := w.hub.ConnectRawLeaf(2, thief, w.thiefKey)
	sent := 0
	for _, node := range []string{same, other} {
		for _, reply := range append(foreignSubjects(node), sharedSubjects...) {
			for _, subj := range []string{"call.cloud." + thief + ".ping", "consumer." + thief + ".info"} {
				r.Publish(subj, reply, "")
			}
			sent++
			r.Publish("report."+thief+".core.pods.default.p", reply, fmt.Sprint("status ", sent))
			r.Publish("consumer."+thief+".next", reply, `{"batch":1,"expires":100000000}`)
		}
	}
	w.eventually("the last report", func() bool { return len(w.messagesWith(fmt.Sprint("status ", sent))) == 1 })
	waitForStragglers()
	for node := range heard {
		if obeyed[node]() != 0 {
			t.Errorf("%s has obeyed an answer", node)
		}
	}
	if got := heard[other](); len(got) != 0 {
		t.Errorf("a gateway of another cell has heard %q", got)
	}
	t.Logf("a gateway of the same cell was sent %d answers, none of which it takes", len(heard[same]()))
	for _, s := range w.messagesWith("") {
		own := strings.Contains(s, "."+thief+".") || strings.Contains(s, "."+thief+" ") || strings.HasPrefix(s, "_R_.") || strings.HasPrefix(s, "$JS.EVENT.")
		// A reply to consumer.<node>.next in the cell is mapped by its own subject, so to a consumer that does not exist.
		nobodys := strings.HasPrefix(s, "$JS.API.CONSUMER.") && !strings.Contains(s, same) && !strings.Contains(s, other)
		// nats-server leaves a reply subject in the form of an ack unchanged, so that pulls work between accounts.
		if !own && !nobodys && !strings.HasPrefix(s, "$JS.ACK.") {
			t.Errorf("FROND has heard %q", s)
		}
	}
	reports := fmt.Sprintf("%s: 1 messages, the last is %d", subject.ReportStream, sent)
	if want := strings.Replace(before, subject.ReportStream+": 0 messages, the last is 0", reports, 1); w.describeState() != want {
		t.Errorf("the hub holds\n%s\nand should hold\n%s", w.describeState(), want)
	}
}

// recordInbound records all messages on the subjects that a gateway may subscribe to.
func (w *testHub) recordInbound(nc *nats.Conn, node string) func() []string {
	w.Helper()
	var got []string
	_, listen := subject.NodePermissions(node)
	for _, subj := range listen {
		_, err := nc.Subscribe(subj, func(m *nats.Msg) {
			w.mu.Lock()
			defer w.mu.Unlock()
			got = append(got, m.Subject+" "+string(m.Data))
		})
		if err != nil {
			w.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		w.Fatal(err)
	}
	return func() []string {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.Clone(got)
	}
}

// describeState describes the state that a thief could change: the streams, and the consumers of the honest gateways.
func (w *testHub) describeState() string {
	w.Helper()
	var b strings.Builder
	for _, name := range []string{subject.DesiredStream, subject.ReportStream, subject.EventStream, subject.DeadLetterStream} {
		s, err := w.js.Stream(w.Context(), name)
		if err != nil {
			w.Fatal(err)
		}
		_, _ = fmt.Fprintf(&b, "%s: %d messages, the last is %d\n", name, s.CachedInfo().State.Msgs, s.CachedInfo().State.LastSeq)
	}
	for _, node := range slices.Sorted(maps.Keys(w.honestConns)) {
		c, err := w.js.Consumer(w.Context(), subject.DesiredStream, node)
		if err != nil {
			w.Fatal(err)
		}
		i := c.CachedInfo()
		_, _ = fmt.Fprintf(&b, "%s: delivered %d, acked %d, pending %d\n", node, i.Delivered.Consumer, i.AckFloor.Consumer, i.NumPending)
	}
	return b.String()
}

// waitForStragglers gives forbidden messages time to arrive.
func waitForStragglers() { <-time.After(500 * time.Millisecond) }
