package inbound_test

import (
	"context"
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
		m := next(t, q)
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

func next(t *testing.T, q *inbound.Queue) inbound.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	m, err := q.Next(ctx)
	kit.Must(t, err)
	return m
}

func newQueue(t *testing.T, nc *nats.Conn, change func(*inbound.Config)) (*inbound.Queue, prometheus.Counter) {
	t.Helper()
	refused := prometheus.NewCounter(prometheus.CounterOpts{Name: "c"})
	cfg := inbound.Config{StorePrefix: prefix, LocalPrefix: local, Refused: refused}
	change(&cfg)
	q, err := inbound.New(nc, cfg)
	kit.Must(t, err)
	return q, refused
}

func updateOf(device int) string {
	return fmt.Sprintf("$hw.events.device.default.t%d.twin.update", device)
}

// What 64 clients may send ahead of its answer waits, all of it, and is handled once, in the order of each client.
func TestQueue_TakesWhatClientsSendAhead(t *testing.T) {
	const clients, ahead = 64, 1026 // nats-server: 1,024 that wait, the one that is waited for, and the one that finds no place
	nc := connect(t)
	q, refused := newQueue(t, nc, func(*inbound.Config) {})
	payload := strings.Repeat("x", 100)
	for i := range ahead {
		for c := range clients {
			kit.Must(t, nc.Publish(prefix+updateOf(c), fmt.Appendf(nil, "%d %s", i, payload)))
		}
	}
	seen := map[string]int{}
	for range clients * ahead {
		m := next(t, q)
		if want := fmt.Sprintf("%d %s", seen[m.Topic], payload); string(m.Payload) != want {
			t.Fatalf("%s: %s, want %s", m.Topic, m.Payload, want)
		}
		seen[m.Topic]++
		kit.Must(t, m.Ack())
	}
	if got := testutil.ToFloat64(refused); got != 0 {
		t.Errorf("%v messages are refused", got)
	}
}

// A topic that has more than its share is refused with all that waits of it and what follows, until its client has noticed; others are not.
func TestQueue_RefusesTheTopicAboveItsShare(t *testing.T) {
	nc := connect(t)
	q, refused := newQueue(t, nc, func(c *inbound.Config) { c.MaxBytes = 12_000 })
	large := strings.Repeat("x", 1000)
	first := publish(t, nc, updateOf(1), large)
	handled := next(t, q)
	waits := []*nats.Subscription{publish(t, nc, updateOf(1), large), publish(t, nc, updateOf(1), large), publish(t, nc, updateOf(1), "behind")}
	other := publish(t, nc, updateOf(2), "other")
	for i, answers := range waits {
		if got := answer(t, answers); !strings.Contains(got, `"error"`) {
			t.Errorf("answer %d of the topic above its share: %s", i, got)
		}
	}
	if got := testutil.ToFloat64(refused); got != 3 {
		t.Errorf("%v messages are counted", got)
	}
	kit.Must(t, handled.Ack())
	if m := next(t, q); string(m.Payload) != "other" {
		t.Errorf("%s is handled", m.Payload)
	} else {
		kit.Must(t, m.Ack())
	}
	for _, answers := range []*nats.Subscription{first, other} {
		if got := answer(t, answers); strings.Contains(got, "error") {
			t.Error(got)
		}
	}
	kit.Succeeds(t, 30*time.Second, func() error { // after the pause
		answers := publish(t, nc, updateOf(1), "again")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		m, err := q.Next(ctx)
		if err == nil {
			kit.Must(t, m.Ack())
			answer(t, answers)
		}
		return err
	})
}

// When all is full, the topic that has most is refused, and not the one whose message comes.
func TestQueue_RefusesTheTopicThatHasMost(t *testing.T) {
	nc := connect(t)
	q, refused := newQueue(t, nc, func(c *inbound.Config) { c.MaxBytes = 12_000 })
	payload := strings.Repeat("x", 500)
	var most []*nats.Subscription
	for i := range 3 {
		most = append(most, publish(t, nc, updateOf(0), fmt.Sprint(i, payload)))
	}
	for i := range 13 { // the last finds no place
		publish(t, nc, updateOf(i+1), payload)
	}
	for _, answers := range most {
		if got := answer(t, answers); !strings.Contains(got, `"error"`) {
			t.Error(got)
		}
	}
	for range 13 {
		if m := next(t, q); m.Topic == "$hw/events/device/default/t0/twin/update" {
			t.Error("a message that is refused is handled")
		}
	}
	if got := testutil.ToFloat64(refused); got != 3 {
		t.Errorf("%v messages are counted", got)
	}
}

// Messages for which the broker does not wait any more are not handled, with what their client has sent behind them; it sends them again.
func TestQueue_ExpiresWhatComesAgain(t *testing.T) {
	nc := connect(t)
	q, _ := newQueue(t, nc, func(c *inbound.Config) { c.Timeout = 7 * time.Second })
	answers := []*nats.Subscription{publish(t, nc, updateOf(1), "1")}
	first := next(t, q)
	if first.Expire() {
		t.Error("a message that has just come is expired")
	}
	kit.Within(t, 30*time.Second, "the message before is late", func() bool { return time.Since(first.Received) > 200*time.Millisecond })
	answers = append(answers, publish(t, nc, updateOf(1), "2"))
	behind := next(t, q)
	kit.Within(t, 30*time.Second, "the first message expires", first.Expire)
	if !behind.Expire() {
		t.Error("what its client sent behind it is handled")
	}
	for _, a := range answers {
		if got := answer(t, a); !strings.Contains(got, `"error"`) {
			t.Error(got)
		}
	}
	var again inbound.Message
	kit.Succeeds(t, 30*time.Second, func() (err error) { // when the pause is over
		publish(t, nc, updateOf(1), "1")
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		again, err = q.Next(ctx)
		return err
	})
	if again.Expire() {
		t.Error("the message that came again is expired")
	}
}

// So are those behind a message that was answered too late.
func TestQueue_ExpiresWhatIsBehindALateAnswer(t *testing.T) {
	nc := connect(t)
	q, _ := newQueue(t, nc, func(c *inbound.Config) { c.Timeout = 3 * time.Second })
	publish(t, nc, updateOf(1), "1")
	publish(t, nc, updateOf(1), "2")
	first, behind := next(t, q), next(t, q)
	kit.Within(t, 30*time.Second, "the broker has given up", func() bool { return time.Since(behind.Received) > 3*time.Second })
	publish(t, nc, updateOf(1), "1 again")
	again := next(t, q)
	kit.Must(t, first.Ack())
	if !behind.Expire() {
		t.Error("what was sent before the connection closed is handled, and comes again")
	}
	if again.Expire() {
		t.Error("what came again is not handled")
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
