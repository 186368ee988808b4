package membership

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sync/errgroup"

	"github.com/frond-edge/frond/test/kit"
)

// startHubServer starts a server of the hub; port -1 selects a free one.
func startHubServer(t *testing.T, name string, port int) *server.Server {
	t.Helper()
	s, err := server.NewServer(&server.Options{ServerName: name, Host: "127.0.0.1", Port: port, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("hub not ready")
	}
	return s
}

// runPart starts a part that ends with the test.
func runPart(t *testing.T, start func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var g errgroup.Group
	g.Go(func() error { return start(ctx) })
	t.Cleanup(func() {
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// dialForever connects to one server, and again whenever that is possible.
func dialForever(url string, opts ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(url, append(opts, nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond), nats.ReconnectJitter(0, 0), nats.IgnoreDiscoveredServers())...)
}

// countingMembers counts restarts of the watch.
type countingMembers struct{ atomic.Int32 }

func (m *countingMembers) RestartWatch() { m.Add(1) }

// TestHubWatcher_NotifiesNodesOfStoppingServer: the nodes are notified, once, of a server that announces its stop, while it still answers.
func TestHubWatcher_NotifiesNodesOfStoppingServer(t *testing.T) {
	s, err := server.NewServer(&server.Options{
		ServerName: "one", Host: "127.0.0.1", Port: server.RANDOM_PORT, NoLog: true, NoSigs: true,
		LameDuckDuration: time.Minute, LameDuckGracePeriod: 50 * time.Second, // it serves its clients until the test ends
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(time.Minute) {
		t.Fatal("hub not ready")
	}
	members, notified := &countingMembers{}, make(chan string, 10)
	note := func(what string) func(node, server string) error {
		return func(_, server string) error {
			notified <- what + server
			return nil
		}
	}
	d := NewHubWatcher([]string{s.ClientURL()}, dialForever, func(context.Context) ([]string, error) { return []string{"edge-1"}, nil },
		NodeCommands{ServerLost: note(""), ServerStops: note("stops ")}, members, zaptest.NewLogger(t))
	runPart(t, d.Start)
	kit.Succeeds(t, time.Minute, func() error { // a server tells only clients that have logged in
		z, err := s.Connz(nil)
		if err != nil {
			return err
		}
		if len(z.Conns) == 0 || z.Conns[0].Lang == "" {
			return errors.New("the watcher has not logged in")
		}
		return nil
	})
	var stopping errgroup.Group
	stopping.Go(func() error {
		s.LameDuckShutdown()
		return nil
	})
	if stops, lost := <-notified, <-notified; stops != "stops one" || lost != "one" {
		t.Errorf("notified of %q and %q", stops, lost)
	}
	if members.Load() != 1 {
		t.Errorf("the watch of the members was restarted %d times", members.Load())
	}
	if s.NumClients() != 1 {
		t.Errorf("the server had %d clients", s.NumClients())
	}
	s.Shutdown()
	if err := stopping.Wait(); err != nil {
		t.Fatal(err)
	}
	select {
	case server := <-notified:
		t.Errorf("notified of %q again when it was gone", server)
	case <-time.After(3 * serverLossGrace):
	}
}

// The nodes are notified of a server that dies, once, also when another process takes its place, and not of one whose
// connections are only cut.
func TestHubWatcher_NotifiesNodesOnceOfLostServer(t *testing.T) {
	one, two := startHubServer(t, "one", server.RANDOM_PORT), startHubServer(t, "two", server.RANDOM_PORT)
	var ones, twos atomic.Int32
	d := &HubWatcher{
		servers:    []string{one.ClientURL(), two.ClientURL()},
		dial:       dialForever,
		ownedNodes: func(context.Context) ([]string, error) { return []string{"edge-1", "edge-2"}, nil },
		nodes: NodeCommands{ServerLost: func(_, server string) error {
			map[string]*atomic.Int32{"one": &ones, "two": &twos}[server].Add(1)
			return nil
		}},
		members: &countingMembers{},
		grace:   2 * time.Second, lost: make(chan string), log: zaptest.NewLogger(t),
	}
	runPart(t, d.Start)
	told := func(what string, want int32, count *atomic.Int32) {
		t.Helper()
		kit.Succeeds(t, time.Minute, func() error {
			if got := count.Load(); got != want {
				return fmt.Errorf("%s: %d nodes were told, want %d", what, got, want)
			}
			return nil
		})
	}
	watched := func(s *server.Server) {
		t.Helper()
		kit.Succeeds(t, time.Minute, func() error {
			if s.NumClients() == 0 {
				return fmt.Errorf("%s has no client", s.Name())
			}
			return nil
		})
	}
	watched(one)
	watched(two)
	connections, err := two.Connz(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range connections.Conns {
		if err := two.DisconnectClientByID(c.Cid); err != nil {
			t.Fatal(err)
		}
	}
	watched(two)
	port := one.Addr().(*net.TCPAddr).Port
	one.Shutdown()
	one.WaitForShutdown()
	told("it died", 2, &ones)
	again := startHubServer(t, "one", port)
	watched(again)
	if got := ones.Load(); got != 2 {
		t.Errorf("%d were told once it was back", got)
	}
	again.Shutdown()
	again.WaitForShutdown()
	told("it died again", 4, &ones)
	if got := twos.Load(); got != 0 {
		t.Errorf("%d were told of a server that lives", got)
	}
}

// Each loss is reported once, also that of a server that came back for a moment only.
func TestLossDetector_ReportsEachLossOnce(t *testing.T) {
	type event struct {
		id   string // of a connection; "" for one that is lost when it is handled
		want string
	}
	const graceEnd, graceEndConnected, lameDuck = "grace ends", "grace ends, connected", "lame duck"
	cases := map[string][]event{
		"lost, back, lost":               {{graceEnd, "one"}, {"2", ""}, {graceEnd, "one"}},
		"stays away":                     {{graceEnd, "one"}, {graceEnd, ""}},
		"a cut":                          {{graceEndConnected, ""}, {"1", ""}, {graceEndConnected, ""}},
		"replaced within the grace":      {{"2", "one"}, {graceEndConnected, ""}},
		"replaced after it was reported": {{graceEnd, "one"}, {"2", ""}, {"3", "one"}},
		"back and lost again at once":    {{graceEnd, "one"}, {"", ""}, {graceEnd, "one"}},
		"back, lost and back as another": {{graceEnd, "one"}, {"", ""}, {"3", "one"}},
		"a cut that ends in another cut": {{"", ""}, {"1", ""}, {graceEndConnected, ""}},
		"twice within one grace":         {{"", ""}, {graceEnd, "one"}, {graceEnd, ""}},
		"announced, then gone":           {{lameDuck, "one"}, {graceEnd, ""}, {"2", ""}, {graceEnd, "one"}},
		"announced twice":                {{lameDuck, "one"}, {lameDuck, ""}},
		"announced by the next one":      {{graceEnd, "one"}, {"2", ""}, {lameDuck, "one"}},
	}
	for name, events := range cases {
		t.Run(name, func(t *testing.T) {
			detector := lossDetector{name: "one", id: "1"}
			for i, e := range events {
				var got string
				switch e.id {
				case graceEnd, graceEndConnected:
					got = detector.observeGraceEnd(e.id == graceEndConnected)
				case lameDuck:
					got = detector.observeLameDuck(detector.id)
				case "":
					got = detector.observeConnected("", "")
				default:
					got = detector.observeConnected("one", e.id)
				}
				if got != e.want {
					t.Errorf("event %d, %q: lost %q, want %q", i, e.id, got, e.want)
				}
			}
		})
	}
	unknown := lossDetector{reported: true}
	if got := unknown.observeGraceEnd(false) + unknown.observeConnected("", "") + unknown.observeConnected("one", "1"); got != "" {
		t.Errorf("lost %q before there was a server", got)
	}
}
