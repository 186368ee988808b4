package e2e_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/jsm.go/natscontext"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/streams/subject"
)

// dialAdmin connects to the hub as the `nats` CLI does, with the context file of the dev cluster.
func dialAdmin() (*nats.Conn, error) {
	ctx, err := natscontext.NewFromFile(shared.NATSContext())
	if err != nil {
		return nil, err
	}
	return ctx.Connect(nats.MaxReconnects(-1))
}

func connectAdmin(t *testing.T) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := dialAdmin()
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

// expectTombstone checks that the stream of desired state holds no object under a subject.
func expectTombstone(t *testing.T, subj string) {
	t.Helper()
	_, js := connectAdmin(t)
	stream, err := js.Stream(t.Context(), subject.DesiredStream)
	if err != nil {
		t.Fatal(err)
	}
	m, err := stream.GetLastMsgForSubject(t.Context(), subj)
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound):
	case err != nil:
		t.Fatalf("read %s: %v", subj, err)
	case m.Header.Get("Frond-Op") != string(wire.Delete) || len(m.Data) != 0:
		t.Errorf("the stream still holds %s: %v", subj, m.Header)
	}
}

// TestCluster_DocumentedFiles compares the cluster's folder with the documentation.
func TestCluster_DocumentedFiles(t *testing.T) {
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
		consumer, err := js.Consumer(t.Context(), subject.DesiredStream, node)
		if err != nil {
			t.Errorf("the consumer of %s: %v", node, err)
			continue
		}
		if info := consumer.CachedInfo(); info.Config.AckPolicy != jetstream.AckExplicitPolicy {
			t.Errorf("the consumer of %s does not ack: %+v", node, info.Config)
		}
	}
}
