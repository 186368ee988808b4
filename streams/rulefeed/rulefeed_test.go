package rulefeed_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/rulefeed"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// publish stores a message of an app as cloudcore does.
func publish(t *testing.T, hub *server.Server, node, topic string, number int, payload string) {
	t.Helper()
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	msg := &nats.Msg{Subject: subject.MessageSubject(node, topic), Data: []byte(payload), Header: nats.Header{
		"Frond-Node": {node}, "Frond-Topic": {topic}, "Frond-Run": {"run"}, "Frond-Number": {strconv.Itoa(number)},
	}}
	if _, err := js.PublishMsg(t.Context(), msg); err != nil {
		t.Fatal(err)
	}
}

// source is a rule that was created before all messages of the test.
func source(topic string) rulefeed.Source {
	return rulefeed.Source{UID: "7c0f", Rule: "line3/alarms", Node: "gw-1", Topic: topic, Since: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
}

func newFeeds(t *testing.T, hub *server.Server) (*rulefeed.Feeds, *prometheus.Registry) {
	t.Helper()
	registry := prometheus.NewRegistry()
	feeds, err := rulefeed.New(streamstest.Connect(t, hub), metrics.New(registry), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	return feeds, registry
}

// run runs a feed until the test ends or stop is called.
func run(t *testing.T, feeds *rulefeed.Feeds, s rulefeed.Source, handle rulefeed.Handle) (stop func()) {
	t.Helper()
	return runReader(t, feeds, s, rulefeed.Reader{Handle: handle, Made: func(error) {}, GaveUp: func() {}})
}

func runReader(t *testing.T, feeds *rulefeed.Feeds, s rulefeed.Source, r rulefeed.Reader) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { feeds.Run(ctx, s, r) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// received are the messages that a handler has accepted.
type received struct {
	mu  sync.Mutex
	all []string // guarded by mu
}

func (r *received) add(m rulefeed.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, m.ID+" "+m.Topic+" "+string(m.Payload))
}

func (r *received) is(want ...string) func() bool {
	return func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return slices.Equal(r.all, want)
	}
}

func awaitWaiting(t *testing.T, feeds *rulefeed.Feeds, want int64) {
	t.Helper()
	streamstest.Eventually(t, fmt.Sprintf("%d messages wait", want), func() bool {
		n, err := feeds.Waiting(t.Context(), "7c0f")
		return err == nil && n == want
	})
}

// A rule gets the messages of its node and topic in their order, those of the time before it was read, and none of other nodes. Another reader of the
// same rule continues where the first has stopped.
func TestFeeds_DeliverInOrder(t *testing.T) {
	hub := streamstest.Hub(t)
	publish(t, hub, "gw-1", "line3/user/a", 1, "one")
	publish(t, hub, "gw-2", "line3/user/a", 1, "foreign node")
	publish(t, hub, "gw-1", "line4/user/a", 2, "foreign topic")
	publish(t, hub, "gw-1", "line3/user/b/c", 3, "two")
	publish(t, hub, "gw-1", "line3/user", 4, "three")
	feeds, _ := newFeeds(t, hub)
	var got received
	accept := func(_ context.Context, m rulefeed.Message) error {
		got.add(m)
		return nil
	}
	want := []string{"gw-1/run/1 line3/user/a one", "gw-1/run/3 line3/user/b/c two", "gw-1/run/4 line3/user three"}
	stop := run(t, feeds, source("line3/user/#"), accept)
	streamstest.Eventually(t, "three messages", got.is(want...))
	awaitWaiting(t, feeds, 0)
	stop()
	publish(t, hub, "gw-1", "line3/user/a", 5, "four")
	awaitWaiting(t, feeds, 1)
	other, _ := newFeeds(t, hub)
	run(t, other, source("line3/user/#"), accept)
	streamstest.Eventually(t, "the fourth message, once", got.is(append(want, "gw-1/run/5 line3/user/a four")...))
}

// A handler that fails gets the same message again, and no later one before. When it is interrupted, the next reader gets the message at once.
func TestFeeds_FailedMessageComesAgain(t *testing.T) {
	hub := streamstest.Hub(t)
	for i := range 3 {
		publish(t, hub, "gw-1", "line3/user/a", i+1, "x")
	}
	feeds, _ := newFeeds(t, hub)
	var got received
	attempts, held := 0, make(chan struct{})
	stop := run(t, feeds, source("line3/user/a"), func(ctx context.Context, m rulefeed.Message) error {
		got.add(m)
		if attempts++; attempts == 1 {
			return errors.New("busy")
		}
		close(held)
		<-ctx.Done()
		return ctx.Err()
	})
	<-held
	stop()
	run(t, feeds, source("line3/user/a"), func(_ context.Context, m rulefeed.Message) error {
		got.add(m)
		return nil
	})
	first := "gw-1/run/1 line3/user/a x"
	streamstest.Eventually(t, "all messages", got.is(first, first, first, "gw-1/run/2 line3/user/a x", "gw-1/run/3 line3/user/a x"))
}

// Two cloudcores that believe to own a rule do not handle messages at the same time.
func TestFeeds_TwoReadersShareOneMessage(t *testing.T) {
	hub := streamstest.Hub(t)
	var (
		mu      sync.Mutex
		now     int // guarded by mu
		overlap bool
		got     received
	)
	var made sync.WaitGroup
	handle := func(_ context.Context, m rulefeed.Message) error {
		made.Wait() // the other one runs, too, and asks for messages while this one is held
		mu.Lock()
		now++
		overlap = overlap || now > 1
		mu.Unlock()
		got.add(m)
		mu.Lock()
		now--
		mu.Unlock()
		return nil
	}
	made.Add(2)
	publish(t, hub, "gw-1", "line3/user/a", 0, "x") // one reader has it before the other runs
	for range 2 {
		feeds, _ := newFeeds(t, hub)
		once := sync.OnceFunc(made.Done)
		runReader(t, feeds, source("line3/user/a"), rulefeed.Reader{Handle: handle, Made: func(error) { once() }, GaveUp: func() {}})
	}
	var want []string
	for i := range 50 {
		if i > 0 {
			publish(t, hub, "gw-1", "line3/user/a", i, "x")
		}
		want = append(want, fmt.Sprintf("gw-1/run/%d line3/user/a x", i))
	}
	streamstest.Eventually(t, "all messages once and in order", got.is(want...))
	mu.Lock()
	defer mu.Unlock()
	if overlap {
		t.Error("two messages were handled at the same time")
	}
}

// A message that can never be handled becomes a dead letter with the reason, and the next one comes.
func TestFeeds_PermanentErrorMakesDeadLetter(t *testing.T) {
	hub := streamstest.Hub(t)
	publish(t, hub, "gw-1", "line3/user/a", 1, "bad")
	publish(t, hub, "gw-1", "line3/user/a", 2, "good")
	feeds, registry := newFeeds(t, hub)
	var got received
	run(t, feeds, source("line3/user/a"), func(_ context.Context, m rulefeed.Message) error {
		if string(m.Payload) == "bad" {
			return fmt.Errorf("%w: status 400", wire.ErrPermanent)
		}
		got.add(m)
		return nil
	})
	streamstest.Eventually(t, "the good message", got.is("gw-1/run/2 line3/user/a good"))
	if n := streamstest.CountDeadLetters(t, registry, "rule"); n != 1 {
		t.Errorf("%v dead letters", n)
	}
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	dead, err := js.Stream(t.Context(), subject.DeadLetterStream)
	if err != nil {
		t.Fatal(err)
	}
	m, err := dead.GetLastMsgForSubject(t.Context(), "dead.cloud.rule")
	if err != nil {
		t.Fatal(err)
	}
	if string(m.Data) != "bad" || m.Header.Get("Frond-Rule") != "line3/alarms" || m.Header.Get("Frond-Reason") == "" || m.Header.Get("Frond-Number") != "1" {
		t.Errorf("dead letter %q with %v", m.Data, m.Header)
	}
}

// A changed topic takes effect for what was not delivered yet; a removed rule leaves nothing in the hub; a message of nobody has an id, too.
func TestFeeds_ChangeAndRemove(t *testing.T) {
	hub := streamstest.Hub(t)
	feeds, _ := newFeeds(t, hub)
	var got received
	accept := func(_ context.Context, m rulefeed.Message) error {
		got.add(m)
		return nil
	}
	s := source("line3/user/a")
	publish(t, hub, "gw-1", "line3/user/a", 1, "one")
	stop := run(t, feeds, s, accept)
	streamstest.Eventually(t, "the first message", got.is("gw-1/run/1 line3/user/a one"))
	stop()
	awaitWaiting(t, feeds, 0)
	s.Topic = "line3/user/b"
	stop = run(t, feeds, s, accept)
	publish(t, hub, "gw-1", "line3/user/a", 2, "two")
	if _, err := mustJetStream(t, hub).Publish(t.Context(), subject.MessageSubject("gw-1", "line3/user/b"), []byte("three")); err != nil {
		t.Fatal(err)
	}
	streamstest.Eventually(t, "the message of the new topic", got.is("gw-1/run/1 line3/user/a one", "MESSAGES-0/3  three"))
	stop()
	for range 2 {
		if err := feeds.Remove(t.Context(), s.UID); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := mustJetStream(t, hub).Stream(t.Context(), subject.MessagesStream)
	if err != nil {
		t.Fatal(err)
	}
	if n := stream.CachedInfo().State.Consumers; n != 0 {
		t.Errorf("%d consumers are left", n)
	}
	awaitWaiting(t, feeds, 0)
}

// A message that was in flight when the topic or the node changed is not sent to the new target.
func TestFeeds_ChangeWhileInFlight(t *testing.T) {
	for name, change := range map[string]func(s *rulefeed.Source){
		"topic": func(s *rulefeed.Source) { s.Topic = "line3/user/b/#" },
		"node":  func(s *rulefeed.Source) { s.Node, s.Topic = "gw-2", "line3/user/+" },
	} {
		t.Run(name, func(t *testing.T) {
			hub := streamstest.Hub(t)
			feeds, _ := newFeeds(t, hub)
			s := source("line3/user/a")
			publish(t, hub, "gw-1", "line3/user/a", 1, "one")
			held := make(chan struct{})
			stop := run(t, feeds, s, func(ctx context.Context, _ rulefeed.Message) error {
				close(held)
				<-ctx.Done()
				return ctx.Err()
			})
			<-held
			stop()
			change(&s)
			publish(t, hub, "gw-1", "line3/user/b", 2, "two")
			publish(t, hub, "gw-2", "line3/user/c", 2, "two")
			var got received
			run(t, feeds, s, func(_ context.Context, m rulefeed.Message) error {
				got.add(m)
				return nil
			})
			want := map[string]string{"topic": "gw-1/run/2 line3/user/b two", "node": "gw-2/run/2 line3/user/c two"}[name]
			streamstest.Eventually(t, "the message of the new source alone", got.is(want))
			awaitWaiting(t, feeds, 0)
		})
	}
}

// Equal messages that are given up, also by two rules, are dead letters each. They are counted when they are stored.
func TestFeeds_EqualDeadLetters(t *testing.T) {
	hub := streamstest.Hub(t)
	js := mustJetStream(t, hub)
	for i := range 2 {
		publish(t, hub, "gw-1", "line3/user/a", i+1, "bad")
	}
	feeds, _ := newFeeds(t, hub)
	storedAtCount := make(chan uint64, 10)
	for _, name := range []string{"one", "two"} {
		s := source("line3/user/a")
		s.UID, s.Rule = name, "line3/"+name
		runReader(t, feeds, s, rulefeed.Reader{
			Made:   func(error) {},
			Handle: func(context.Context, rulefeed.Message) error { return fmt.Errorf("%w: status 400", wire.ErrPermanent) },
			GaveUp: func() {
				dead, err := js.Stream(context.WithoutCancel(t.Context()), subject.DeadLetterStream)
				if err != nil {
					t.Error(err)
					return
				}
				storedAtCount <- dead.CachedInfo().State.Msgs
			},
		})
	}
	var stored uint64
	for i := range 4 {
		stored = <-storedAtCount
		if stored == 0 {
			t.Errorf("count %d: nothing is stored", i)
		}
	}
	streamstest.Eventually(t, "four dead letters", func() bool {
		dead, err := js.Stream(t.Context(), subject.DeadLetterStream)
		return err == nil && dead.CachedInfo().State.Msgs == 4
	})
}

// A consumer that the hub refuses is told, and so is one that it makes later.
func TestFeeds_RefusedConsumerIsTold(t *testing.T) {
	options := streamstest.Options(t, "hub")
	options.JetStream, options.StoreDir, options.JetStreamLimits.DefaultMaxConsumers = true, t.TempDir(), 1
	hub := streamstest.Run(t, options)
	js := mustJetStream(t, hub)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: subject.MessagesStream, Subjects: []string{"messages.>"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), subject.MessagesStream, jetstream.ConsumerConfig{Durable: "other"}); err != nil {
		t.Fatal(err)
	}
	publish(t, hub, "gw-1", "line3/user/a", 1, "x")
	feeds, _ := newFeeds(t, hub)
	var got received
	told := make(chan error, 1_000)
	runReader(t, feeds, source("line3/user/a"), rulefeed.Reader{
		Made:   func(err error) { told <- err },
		GaveUp: func() {},
		Handle: func(_ context.Context, m rulefeed.Message) error {
			got.add(m)
			return nil
		},
	})
	if err := <-told; !errors.Is(err, jetstream.ErrMaximumConsumersLimit) {
		t.Fatalf("the hub has no room: told %v", err)
	}
	if err := js.DeleteConsumer(t.Context(), subject.MessagesStream, "other"); err != nil {
		t.Fatal(err)
	}
	for err := range told {
		if err == nil {
			break
		}
	}
	streamstest.Eventually(t, "the message of the time before", got.is("gw-1/run/1 line3/user/a x"))
}

// The hub answers requests to keep a message; without it a handler ends.
func TestFeeds_HandlerEndsWithoutHub(t *testing.T) {
	hub := streamstest.Hub(t)
	publish(t, hub, "gw-1", "line3/user/a", 1, "x")
	nc := streamstest.Connect(t, hub)
	feeds, err := rulefeed.New(nc, metrics.New(prometheus.NewRegistry()), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	feeds.Hurry()
	begun, ended := make(chan struct{}), make(chan struct{})
	run(t, feeds, source("line3/user/a"), func(ctx context.Context, _ rulefeed.Message) error {
		close(begun)
		<-ctx.Done()
		close(ended)
		return ctx.Err()
	})
	<-begun
	before := nc.Stats().InMsgs
	streamstest.Eventually(t, "answers that the message is kept", func() bool { return nc.Stats().InMsgs > before+2 })
	hub.Shutdown()
	streamstest.Eventually(t, "the end of the handler", func() bool {
		select {
		case <-ended:
			return true
		default:
			return false
		}
	})
}

func mustJetStream(t *testing.T, hub *server.Server) jetstream.JetStream {
	t.Helper()
	js, err := jetstream.New(streamstest.Connect(t, hub))
	if err != nil {
		t.Fatal(err)
	}
	return js
}
