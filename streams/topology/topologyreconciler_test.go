package topology_test

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
	"github.com/frond-edge/frond/streams/topology"
	"github.com/frond-edge/frond/test/kit"
	"github.com/frond-edge/frond/test/kit/streamstest"
)

// startHubServer runs a hub server on a folder; port -1 is any.
func startHubServer(t *testing.T, dir string, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{
		ServerName: "hub", Host: "127.0.0.1", Port: port, JetStream: true, JetStreamDomain: subject.HubDomain,
		StoreDir: dir, NoSigs: true, NoLog: true, MaxPayload: 8 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("hub not ready")
	}
	return s
}

// A hub whose disks are put back to an older copy keeps the stream's life, and counts again from there. (A stream restored with `nats
// stream restore` begins a new life.)
func TestTopologyReconciler_DetectsRestoredStream(t *testing.T) {
	dir, backup := t.TempDir(), t.TempDir()
	hub := startHubServer(t, dir, server.RANDOM_PORT)
	nc := streamstest.Connect(t, hub, nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.HubTopology(1, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	publisher, err := publish.NewPublisher(nc, subject.Layout{}, metrics.New(nil))
	if err != nil {
		t.Fatal(err)
	}
	publish := func(name string) {
		t.Helper()
		if _, err := publisher.Publish(t.Context(), streamstest.DesiredMessage(name, "1"), 0); err != nil {
			t.Fatal(err)
		}
	}
	renewed := 0
	keeper, err := topology.NewReconciler(nc, 1, subject.Layout{}, func() { renewed++ }, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	look := func(times, want int) {
		t.Helper()
		for range times {
			kit.Eventually(t, "a look at the hub", func() bool { return keeper.ReconcileTopology(t.Context()) == nil })
		}
		if renewed != want {
			t.Errorf("told %d times, want %d", renewed, want)
		}
	}
	address, _ := hub.Addr().(*net.TCPAddr)
	restart := func(dir string) {
		t.Helper()
		hub.Shutdown()
		hub.WaitForShutdown()
		hub = startHubServer(t, dir, address.Port)
	}
	publish("a")
	look(3, 0)
	epoch := keeper.Epoch("edge.1")
	stopAndCopy(t, hub, dir, backup)
	restart(dir)
	look(1, 0)
	publish("b")
	look(3, 0)
	restart(backup)
	look(5, 1)
	if keeper.Epoch("edge.1") != epoch {
		t.Errorf("the life is %s, before %s: then there is nothing to notice", keeper.Epoch("edge.1"), epoch)
	}
	publish("b")
	publish("c")
	look(3, 1)
}

// stopAndCopy ends a server and copies its folder.
func stopAndCopy(t *testing.T, s *server.Server, from, to string) {
	t.Helper()
	s.Shutdown()
	s.WaitForShutdown()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
}

// One observation of a lagging replica proves nothing; two in a row do, and a new life does at once.
func TestTopologyReconciler_NeedsTwoRegressions(t *testing.T) {
	renewed := 0
	keeper, err := topology.NewReconciler(streamstest.Connect(t, streamstest.Hub(t)), 1, subject.Layout{}, func() { renewed++ }, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	for i, look := range []struct {
		epoch string
		last  uint64
		want  int
	}{
		{"a", 10, 0},
		{"a", 9, 0},
		{"a", 11, 0},
		{"a", 10, 0},
		{"a", 12, 0}, // one that lagged, twice
		{"a", 7, 0},
		{"a", 7, 1},
		{"a", 7, 1},
		{"a", 7, 1},
		{"a", 7, 1}, // went back: reported once
		{"a", 8, 1},
		{"a", 7, 1},
		{"a", 7, 2}, // and again
		{"b", 1, 3},
		{"b", 1, 3}, // another life
	} {
		if keeper.ObserveStream(look.epoch, look.last); renewed != look.want {
			t.Errorf("look %d, %s at %d: told %d times, want %d", i, look.epoch, look.last, renewed, look.want)
			renewed = look.want
		}
	}
}

// A stream that was deleted is created again, and if it held desired state, that is published again.
func TestTopologyReconciler_RecreatesMissingStreams(t *testing.T) {
	nc := streamstest.Connect(t, streamstest.Hub(t))
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := topology.Ensure(t.Context(), js, topology.HubTopology(1, subject.Layout{})); err != nil {
		t.Fatal(err)
	}
	renewed := 0
	keeper, err := topology.NewReconciler(nc, 1, subject.Layout{}, func() { renewed++ }, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		stream string
		want   int
	}{{"", 0}, {subject.ReportStream, 0}, {subject.DesiredStream, 1}} {
		if tt.stream != "" {
			if err := js.DeleteStream(t.Context(), tt.stream); err != nil {
				t.Fatal(err)
			}
		}
		if err := keeper.ReconcileTopology(t.Context()); err != nil {
			t.Fatal(err)
		}
		if renewed != tt.want {
			t.Errorf("%d: told %d times, want %d", i, renewed, tt.want)
		}
		if tt.stream == "" {
			continue
		}
		if _, err := js.Stream(t.Context(), tt.stream); err != nil {
			t.Errorf("stream %s: %v", tt.stream, err)
		}
	}
}
