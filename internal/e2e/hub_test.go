package e2e_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams"
)

// admin connects to the hub as the `nats` CLI would, from the context file that the dev cluster wrote.
func admin() (*nats.Conn, error) {
	ctx, err := natscontext.NewFromFile(shared.NATSContext())
	if err != nil {
		return nil, err
	}
	return ctx.Connect(nats.MaxReconnects(-1))
}

func connectAdmin(t *testing.T) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := admin()
	if err != nil {
		t.Fatalf("the context for the nats CLI: %v", err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

// streamHolds says which of some subjects the stream of desired state still holds; "" means none.
func streamHolds(ctx context.Context, subjects ...string) string {
	nc, err := admin()
	if err != nil {
		return err.Error()
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err.Error()
	}
	stream, err := js.Stream(ctx, streams.DesiredStream)
	if err != nil {
		return err.Error()
	}
	for _, subject := range subjects {
		info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subject))
		if err != nil {
			return err.Error()
		}
		if len(info.State.Subjects) != 0 {
			return fmt.Sprint(info.State.Subjects)
		}
	}
	return ""
}

// TestFilesOfTheCluster holds the folder to what the documentation promises.
func TestFilesOfTheCluster(t *testing.T) {
	for _, name := range []string{"kubeconfig", "bin/kubectl", "nats/context.json", "env", "logs"} {
		if _, err := os.Stat(filepath.Join(shared.Dir(), name)); err != nil {
			t.Error(err)
		}
	}
	nc, js := connectAdmin(t)
	if !nc.IsConnected() {
		t.Fatal("the context for the nats CLI does not connect")
	}
	for _, node := range []string{"edge-1", "edge-2"} {
		consumer, err := js.Consumer(t.Context(), streams.DesiredStream, node)
		if err != nil {
			t.Errorf("the consumer of %s: %v", node, err)
			continue
		}
		if info := consumer.CachedInfo(); info.Config.AckPolicy != jetstream.AckExplicitPolicy {
			t.Errorf("the consumer of %s does not ack: %+v", node, info.Config)
		}
	}
}
