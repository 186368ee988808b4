package hubconf_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/hubconf/hubtest"
	"github.com/frond-edge/frond/streams"
	"github.com/frond-edge/frond/streams/tunnel"
)

// A gateway does all of its work from its cell, over each listener, through another server than the cloudcore's; and a reload of
// the same configuration, as for a renewed certificate, leaves its link alone.
func TestAGatewayWorksFromItsCell(t *testing.T) {
	w := newTown(t)
	pong := func(context.Context, string, []byte) (any, error) { return struct{}{}, nil }
	calls, err := streams.NewCalls(w.cloud, map[string]streams.CallHandler{streams.VerbPing: pong}, streams.NewMetrics(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	w.run(calls.Start)
	beats := make(chan string, 1024) // more than come
	heard, err := streams.NewBeats(w.cloud, func(_ context.Context, node string, _ wire.Beat) { beats <- node }, streams.NewMetrics(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	w.run(heard.Start)
	dialer, err := tunnel.NewDialer(w.cloud, tunnel.Config{}, tunnel.NewMetrics(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	w.run(dialer.Start)
	for i, way := range []struct{ scheme, address string }{{"tls", w.hub.Leaf(1)}, {"wss", w.hub.Websocket(2)}} {
		t.Run(way.scheme, func(t *testing.T) {
			nc := w.link(way.scheme, way.address, thief, w.key)
			w.eventually("a call", func() bool {
				return streams.Call(t.Context(), nc, thief, streams.VerbPing, struct{}{}, &struct{}{}) == nil
			})
			if err := streams.Probe(t.Context(), nc, thief); err != nil {
				t.Error(err)
			}
			w.honest[thief] = nc
			obeyed := w.orders(thief)
			w.eventually("an order", func() bool { return streams.Order(w.cloud, thief, streams.VerbResync, nil) == nil && obeyed() > 0 })
			w.eventually("a beat", func() bool {
				_ = nc.Publish(streams.BeatSubject(thief), []byte("{}"))
				select {
				case node := <-beats:
					return node == thief
				default:
					return false
				}
			})
			w.report(i)
			w.delivery(i)
			serve, err := tunnel.NewServer(thief, nc, tunnel.Config{}, tunnel.NewMetrics(nil), zaptest.NewLogger(t))
			if err != nil {
				t.Fatal(err)
			}
			w.run(serve.Start)
			<-dialer.Ready()
			w.eventually("a tunnel", func() bool {
				_, err := dialer.Dial(t.Context(), thief, 1)
				return err != nil && strings.Contains(err.Error(), "listens")
			})
			w.reload(i + 1)
			nc.Close()
		})
	}
}

// report stores one, which the hub acks.
func (w *town) report(i int) {
	w.Helper()
	w.eventually("a report", func() bool {
		ctx, cancel := context.WithTimeout(w.Context(), 2*time.Second)
		defer cancel()
		m, err := w.honest[thief].RequestWithContext(ctx, fmt.Sprint("report."+thief+".core.pods.default.p", i), []byte("{}"))
		return err == nil && strings.Contains(string(m.Data), streams.ReportStream)
	})
}

// delivery pulls from the gateway's own consumer, and acks.
func (w *town) delivery(i int) {
	w.Helper()
	nc := w.honest[thief]
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
		c, err := w.js.Consumer(w.Context(), streams.DesiredStream, thief)
		if err != nil {
			return false
		}
		info = c.CachedInfo()
		return info.NumAckPending == 0 && info.NumPending == 0
	})
}

// reload lets a server read its file again.
func (w *town) reload(i int) {
	w.Helper()
	s := w.hub.Server(i)
	before := links(w.T, w.hub, i)
	if err := s.Reload(); err != nil {
		w.Fatal(err)
	}
	w.report(10 + i)
	w.delivery(10 + i)
	if after := links(w.T, w.hub, i); after != before {
		w.Errorf("after the reload there are links %s, before it %s", after, before)
	}
}

func links(t *testing.T, h *hubtest.Hub, i int) string {
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
