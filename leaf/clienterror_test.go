package leaf_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/leaf"
	"github.com/frond-edge/frond/test/kit"
)

// By default nats.go writes errors that no call returns to stderr, where they are no JSON lines.
func TestConn_ErrorsAreLogged(t *testing.T) {
	core, logs := observer.New(zapcore.WarnLevel)
	s, err := leaf.New(leaf.Config{Node: "n", Dir: t.TempDir(), Reserve: -1}, zap.New(core))
	if err != nil {
		t.Fatal(err)
	}
	var g errgroup.Group
	g.Go(func() error { return s.Start(t.Context()) })
	t.Cleanup(func() { // after the context has ended
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
	kit.Receive(t, "the leaf is ready", s.Ready())
	nc, err := s.LocalConn("probe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	sub, err := nc.SubscribeSync("s") // nobody reads it
	if err != nil {
		t.Fatal(err)
	}
	if err := sub.SetPendingLimits(1, -1); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := nc.Publish("s", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a line of the log", func() error {
		for _, line := range logs.FilterMessage("connection to the leaf server").All() {
			fields := line.ContextMap()
			if fields["connection"] == "probe" && fields["subject"] == "s" && strings.Contains(fmt.Sprint(fields["error"]), nats.ErrSlowConsumer.Error()) {
				return nil
			}
		}
		return fmt.Errorf("none of %d lines", logs.Len())
	})
}
