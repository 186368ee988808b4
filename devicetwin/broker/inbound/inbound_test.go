package inbound_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/frond-edge/frond/devicetwin/broker/inbound"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

const (
	prefix = "$MQTT.msgs."
	local  = "local."
	update = "$hw.events.device.default.t1.twin.update"
)

// connect starts a server and connects to it.
func connect(t *testing.T) *nats.Conn {
	t.Helper()
	ns, err := server.NewServer(&server.Options{ServerName: "s", JetStream: true, StoreDir: t.TempDir(), DontListen: true, NoSigs: true, NoLog: true})
	kit.Must(t, err)
	ns.Start()
	t.Cleanup(func() {
		ns.Shutdown()
		ns.WaitForShutdown()
	})
	if !ns.ReadyForConnections(30 * time.Second) {
		t.Fatal("the server does not start")
	}
	nc, err := nats.Connect("", nats.InProcessServer(ns))
	kit.Must(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// publish publishes as nats-server's MQTT does, and returns where the answer comes.
func publish(t *testing.T, nc *nats.Conn, subject, payload string) *nats.Subscription {
	t.Helper()
	answers, err := nc.SubscribeSync(nc.NewInbox())
	kit.Must(t, err)
	kit.Must(t, nc.PublishMsg(&nats.Msg{Subject: prefix + subject, Reply: answers.Subject, Data: []byte(payload)}))
	return answers
}

func answer(t *testing.T, answers *nats.Subscription) string {
	t.Helper()
	m, err := answers.NextMsg(30 * time.Second)
	kit.Must(t, err)
	return string(m.Data)
}

// Messages come in their order over all topics of devices and nodes, and are answered when they are handled. Apps of the gateway have them before.
func TestQueue_AnswersWhatIsHandled(t *testing.T) {
	nc := connect(t)
	copies, err := nc.SubscribeSync(local + ">")
	kit.Must(t, err)
	q, err := inbound.New(nc, inbound.Config{StorePrefix: prefix, LocalPrefix: local, Refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "c"})})
	kit.Must(t, err)
	publish(t, nc, "$hw.events.upload.x", "not ours")
	var answers []*nats.Subscription
	for i, subject := range []string{update, "$hw.events.node.edge-1.membership.get", "$hw.events.device.default.t1.other", update} {
		answers = append(answers, publish(t, nc, subject, fmt.Sprint(i)))
	}
	var waiting []inbound.Message
	for i := range answers {
		m := kit.Receive(t, "a message", q.Messages())
		if string(m.Payload) != fmt.Sprint(i) || m.Received.IsZero() || !strings.HasPrefix(m.Topic, "$hw/events/") {
			t.Fatalf("message %d is %+v", i, m)
		}
		if c, err := copies.NextMsg(30 * time.Second); err != nil || string(c.Data) != fmt.Sprint(i) {
			t.Fatalf("copy %d for apps of the gateway: %v, %v", i, c, err)
		}
		waiting = append(waiting, m)
	}
	kit.Must(t, nc.Flush())
	for i, m := range waiting {
		if n, _, _ := answers[i].Pending(); n != 0 {
			t.Errorf("message %d is answered and not handled", i)
		}
		kit.Must(t, m.Ack())
		if got := answer(t, answers[i]); strings.Contains(got, "error") {
			t.Errorf("message %d: %s", i, got)
		}
	}
}

// Beyond its bounds a message is refused and counted, and so is what follows it, until its client has noticed.
func TestQueue_RefusesBeyondItsBounds(t *testing.T) {
	for name, cfg := range map[string]inbound.Config{"messages": {MaxWaiting: 2}, "bytes": {MaxBytes: 3000}} {
		t.Run(name, func(t *testing.T) {
			nc := connect(t)
			cfg.StorePrefix, cfg.LocalPrefix, cfg.Refused = prefix, local, prometheus.NewCounter(prometheus.CounterOpts{Name: "c"})
			q, err := inbound.New(nc, cfg)
			kit.Must(t, err)
			payload := strings.Repeat("x", 1000)
			taken := []*nats.Subscription{publish(t, nc, update, payload), publish(t, nc, update, payload)}
			if got := answer(t, publish(t, nc, update, payload)); !strings.Contains(got, `"error"`) {
				t.Errorf("answer beyond the bound: %s", got)
			}
			if got := testutil.ToFloat64(cfg.Refused); got != 1 {
				t.Errorf("%v messages are counted", got)
			}
			for _, answers := range taken {
				kit.Must(t, kit.Receive(t, "a message", q.Messages()).Ack())
				if got := answer(t, answers); strings.Contains(got, "error") {
					t.Error(got)
				}
			}
			kit.Succeeds(t, 30*time.Second, func() error { // after the pause
				if got := answerOrHandle(t, q, publish(t, nc, update, "1")); strings.Contains(got, "error") {
					return fmt.Errorf("%s", got)
				}
				return nil
			})
		})
	}
}

// answerOrHandle handles a message, if it is not refused, and returns its answer.
func answerOrHandle(t *testing.T, q *inbound.Queue, answers *nats.Subscription) string {
	t.Helper()
	for {
		select {
		case m := <-q.Messages():
			kit.Must(t, m.Ack())
		default:
		}
		if m, err := answers.NextMsg(10 * time.Millisecond); err == nil {
			return string(m.Data)
		}
	}
}

// The consumer of an older version goes, and what it has not handled is counted.
func TestRemoveConsumer(t *testing.T) {
	js, err := jetstream.New(connect(t))
	kit.Must(t, err)
	remove := func(want uint64) {
		t.Helper()
		if lost, err := inbound.RemoveConsumer(t.Context(), js, "S"); err != nil || lost != want {
			t.Errorf("lost %d, %v; want %d", lost, err, want)
		}
	}
	remove(0)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"m.>"}, Retention: jetstream.InterestPolicy})
	kit.Must(t, err)
	remove(0)
	consumer, err := js.CreateConsumer(t.Context(), "S", jetstream.ConsumerConfig{Durable: "devicetwin", AckPolicy: jetstream.AckExplicitPolicy})
	kit.Must(t, err)
	_, err = js.Publish(t.Context(), "m.a", nil)
	kit.Must(t, err)
	kit.Within(t, 30*time.Second, "the server has counted the message", func() bool {
		info, err := consumer.Info(t.Context())
		kit.Must(t, err)
		return info.NumPending == 1
	})
	remove(1)
	remove(0)
}
