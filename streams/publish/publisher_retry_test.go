package publish_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// A publish that was lost with the stream's leader is repeated within its timeout, instead of waiting for an answer until the timeout.
func TestPublisher_RepeatsUnansweredPublish(t *testing.T) {
	hub := streamstest.Hub(t)
	nc := streamstest.Connect(t, hub)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), subject.DesiredStream)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(t.Context(), subject.DesiredStream); err != nil {
		t.Fatal(err)
	}
	lost := make(chan *nats.Msg, 64) // more than arrive
	grave, err := nc.ChanSubscribe("desired.>", lost)
	if err != nil {
		t.Fatal(err)
	}
	publisher, err := publish.NewPublisher(streamstest.Connect(t, hub), subject.Layout{}, metrics.New(nil))
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	g.Go(func() error {
		_, err := publisher.Publish(t.Context(), streamstest.DesiredMessage("a", "1"), 0)
		return err
	})
	<-lost
	if _, err := js.CreateStream(t.Context(), stream.CachedInfo().Config); err != nil {
		t.Fatal(err)
	}
	if err := grave.Unsubscribe(); err != nil {
		t.Fatal(err)
	}
	if err := g.Wait(); err != nil {
		t.Errorf("the stream is there again: %v", err)
	}
	again, err := js.Stream(t.Context(), subject.DesiredStream)
	if err != nil {
		t.Fatal(err)
	}
	if n := again.CachedInfo().State.LastSeq; n != 1 {
		t.Errorf("it was stored %d times", n)
	}
}

// A request to a stream without a leader is never answered, even after an election: it is repeated while there is time.
func TestPublisher_RepeatsRequestToLeaderlessStream(t *testing.T) {
	deaf, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	deaf.Start()
	t.Cleanup(func() {
		deaf.Shutdown()
		deaf.WaitForShutdown()
	})
	if !deaf.ReadyForConnections(time.Minute) {
		t.Fatal("server not ready")
	}
	nc := streamstest.Connect(t, deaf)
	asked := make(chan *nats.Msg, 64) // more than arrive
	if _, err := nc.ChanSubscribe("$JS.API.STREAM.INFO.DESIRED-0", asked); err != nil {
		t.Fatal(err)
	}
	publisher, err := publish.NewPublisher(nc, subject.Layout{}, metrics.New(nil))
	if err != nil {
		t.Fatal(err)
	}
	known := func(context.Context, string) bool { return true }
	attacher, err := publish.NewAttacher(publish.AttacherConfig{NodeExists: known}, nc, subject.Layout{}, metrics.New(nil), zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, ask := range map[string]func(context.Context) error{
		"what it holds": func(ctx context.Context) error {
			_, err := publisher.Held(ctx, "edge-1")
			return err
		},
		"an attach": func(ctx context.Context) error {
			_, err := attacher.Handle(ctx, "edge-1", []byte(`{}`))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var g errgroup.Group
			g.Go(func() error {
				defer cancel()
				return ask(ctx)
			})
			for range 2 {
				select {
				case <-asked:
				case <-ctx.Done():
					t.Error("not asked again")
				}
			}
			cancel()
			if err := g.Wait(); err == nil {
				t.Error("nobody answered, and there is no error")
			}
			for len(asked) > 0 {
				<-asked
			}
		})
	}
}
