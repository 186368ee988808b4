package hubconf_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/tunnel"
	"github.com/frond-edge/frond/test/kit/hubtest"
)

// A gateway does all of its work from its cell, over each listener, through another server than the cloudcore's; and a reload of the same
// configuration, as for a renewed certificate, does not affect its link.
func TestHub_GatewayWorksFromItsCell(t *testing.T) {
	w := startTestHub(t)
	pong := func(context.Context, string, []byte) (any, error) { return struct{}{}, nil }
	calls, err := call.NewServer(w.cloud, map[string]call.Handler{subject.VerbPing: pong}, metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	w.startPart(calls.Start)
	beats := make(chan string, 1024) // more than arrive
	heard, err := call.NewHeartbeats(w.cloud, func(_ context.Context, node string, _ wire.Heartbeat) { beats <- node }, metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	w.startPart(heard.Start)
	dialer, err := tunnel.NewDialer(w.cloud, tunnel.Config{}, tunnel.NewMetrics(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	w.startPart(dialer.Start)
	for i, way := range []struct{ scheme, address string }{{"tls", w.hub.LeafAddr(1)}, {"wss", w.hub.WebsocketAddr(2)}} {
		t.Run(way.scheme, func(t *testing.T) {
			nc := w.connectLeaf(way.scheme, way.address, thief, w.thiefKey)
			w.eventually("a call", func() bool {
				return call.Call(t.Context(), nc, thief, subject.VerbPing, struct{}{}, &struct{}{}) == nil
			})
			if err := call.Probe(t.Context(), nc, thief); err != nil {
				t.Error(err)
			}
			w.honestConns[thief] = nc
			obeyed := w.countCommands(thief)
			w.eventually("an order", func() bool {
				return call.SendCommand(w.cloud, thief, call.VerbResync, nil) == nil && obeyed() > 0
			})
			w.eventually("a beat", func() bool {
				_ = nc.Publish(subject.HeartbeatSubject(thief), []byte("{}"))
				select {
				case node := <-beats:
					return node == thief
				default:
					return false
				}
			})
			w.publishReport(i)
			w.pullAndAck(i)
			serve, err := tunnel.NewServer(thief, nc, tunnel.Config{}, tunnel.NewMetrics(nil), zaptest.NewLogger(t))
			if err != nil {
				t.Fatal(err)
			}
			w.startPart(serve.Start)
			<-dialer.Ready()
			w.eventually("a tunnel", func() bool {
				_, err := dialer.Dial(t.Context(), thief, 1)
				return err != nil && strings.Contains(err.Error(), "listens")
			})
			w.reloadServer(i + 1)
			nc.Close()
		})
	}
}

// publishReport publishes a report, which the hub acks.
func (w *testHub) publishReport(i int) {
	w.Helper()
	w.eventually("a report", func() bool {
		ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
		defer cancel()
		m, err := w.honestConns[thief].RequestWithContext(ctx, fmt.Sprint("report."+thief+".core.pods.default.p", i), []byte("{}"))
		return err == nil && strings.Contains(string(m.Data), subject.ReportStream)
	})
}

// pullAndAck pulls from the gateway's own consumer, and acks.
func (w *testHub) pullAndAck(i int) {
	w.Helper()
	nc := w.honestConns[thief]
	if _, err := w.js.Publish(w.Context(), "desired."+thief+".core.secrets.default.s", fmt.Append(nil, "secret ", i)); err != nil {
		w.Fatal(err)
	}
	w.eventually("a delivery", func() bool {
		m, err := nc.Request("consumer."+thief+".next", []byte(`{"batch":1,"expires":1000000000}`), 2*time.Second)
		if err != nil {
			return false
		}
		where, ok := strings.CutPrefix(m.Reply, "$JS.ACK.DESIRED-0."+thief+".")
		if !ok {
			return false
		}
		if err := nc.Publish("consumer."+thief+".ack."+where, nil); err != nil {
			w.Fatal(err)
		}
		return string(m.Data) == fmt.Sprint("secret ", i)
	})
	var info *jetstream.ConsumerInfo
	w.eventually("the ack", func() bool {
		c, err := w.js.Consumer(w.Context(), subject.DesiredStream, thief)
		if err != nil {
			return false
		}
		info = c.CachedInfo()
		return info.NumAckPending == 0 && info.NumPending == 0
	})
}

// reloadServer makes a server read its file again.
func (w *testHub) reloadServer(i int) {
	w.Helper()
	s := w.hub.Server(i)
	before := leafIDs(w.T, w.hub, i)
	if err := s.Reload(); err != nil {
		w.Fatal(err)
	}
	w.publishReport(10 + i)
	w.pullAndAck(10 + i)
	if after := leafIDs(w.T, w.hub, i); after != before {
		w.Errorf("after the reload there are links %s, before it %s", after, before)
	}
}

func leafIDs(t *testing.T, h *hubtest.Hub, i int) string {
	t.Helper()
	z, err := h.Server(i).Leafz(nil)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[uint64]string{}
	for _, l := range z.Leafs {
		ids[l.ID] = l.Name
	}
	return fmt.Sprint(ids)
}

// The inboxes of a gateway's requests to itself do not cross the link; those of its requests to the cloud do.
func TestHub_LocalInboxesStayInTheGateway(t *testing.T) {
	w := startTestHub(t)
	gateway := w.hub.StartLeaf("tls", w.hub.LeafAddr(1), thief, w.thiefKey)
	for _, prefix := range []string{leaf.LocalInboxPrefix, subject.InboxPrefix(thief)} {
		nc, err := nats.Connect("", nats.InProcessServer(gateway), nats.CustomInboxPrefix(prefix))
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		if _, err := nc.SubscribeSync(nc.NewInbox()); err != nil {
			t.Fatal(err)
		}
	}
	var crossed []string
	w.eventually("the inbox of requests to the cloud", func() bool {
		links, err := w.hub.Server(1).Leafz(&server.LeafzOptions{Subscriptions: true})
		if err != nil {
			t.Fatal(err)
		}
		crossed = nil
		for _, link := range links.Leafs {
			crossed = append(crossed, link.Subs...)
		}
		return slices.ContainsFunc(crossed, func(subj string) bool { return strings.HasPrefix(subj, subject.InboxPrefix(thief)+".") })
	})
	if at := slices.IndexFunc(crossed, func(subj string) bool { return strings.HasPrefix(subj, leaf.LocalInboxPrefix) }); at >= 0 {
		t.Errorf("%s crossed the link", crossed[at])
	}
}
