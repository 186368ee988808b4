// Package streamstest starts a real hub for tests: one NATS server with JetStream in the domain of the hub, on a free
// loopback port, with Frond's topology in place.
package streamstest

import (
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/frond-edge/frond/streams"
)

// startTimeout is generous: an embedded server is up in some 10 ms on an idle machine.
const startTimeout = 20 * time.Second

// Hub starts a hub server that ends with the test.
func Hub(t testing.TB) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		ServerName: "hub", Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, JetStreamDomain: streams.HubDomain,
		StoreDir: t.TempDir(), NoSigs: true, NoLog: true, MaxPayload: 8 << 20,
	})
	if err != nil {
		t.Fatalf("hub: %v", err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(startTimeout) {
		t.Fatal("hub not ready")
	}
	js, err := jetstream.New(Connect(t, s))
	if err != nil {
		t.Fatalf("hub: %v", err)
	}
	if err := streams.Ensure(t.Context(), js, streams.Hub(1)); err != nil {
		t.Fatalf("hub topology: %v", err)
	}
	return s
}

// Connect opens a client connection that closes with the test.
func Connect(t testing.TB, s *server.Server, opts ...nats.Option) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(s.ClientURL(), opts...)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(nc.Close)
	return nc
}

// Eventually waits for a condition and fails the test when it does not come true within ten seconds.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(time.Minute)
	defer deadline.Stop()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		case <-ticker.C:
		}
	}
}
