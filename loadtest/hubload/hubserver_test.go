package hubload_test

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/loadtest/hubload"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startServer starts a server that ends with the test.
func startServer(t *testing.T, nodes int) *hubload.Server {
	t.Helper()
	if _, err := toolchain.Find(t.Context(), toolchain.Request{Nats: true}); err != nil {
		if slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), "kube") {
			t.Fatalf("REQUIRE names kube: %v", err)
		}
		t.Skipf("no nats-server, make tools builds it: %v", err)
	}
	server, err := hubload.Start(t.Context(), nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// TestServer_EachNodeGetsAChange attaches nodes in two steps, as the scenario does.
func TestServer_EachNodeGetsAChange(t *testing.T) {
	server := startServer(t, 12)
	for _, n := range []int{3, 12} {
		if err := server.AttachNodes(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.VerifyDelivery(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The storm that TestStorm_Ends raises. 2,000 nodes and a share of 0.035, on two processors 7 % of one, are too much for a hub whose
// gateways dial each 15 s at the latest, whatever becomes of it: 12 were linked after 120 s, as after 20 s. The pauses of stalled dials
// bring that to 1,758 after 160 s.
var (
	stormNodes = flag.Int("storm.nodes", 400, "nodes that dial at once")
	stormShare = flag.Float64("storm.share", 0.03, "share of the time for which the hub runs")
)

// TestStorm_Ends lets all nodes dial a hub at once that is too small for that.
func TestStorm_Ends(t *testing.T) {
	server := startServer(t, *stormNodes)
	lift := server.LimitCPU(*stormShare)
	defer func() {
		if err := lift(); err != nil {
			t.Error(err)
		}
	}()
	began := time.Now()
	storm := server.StartStorm(hubload.StormConfig{
		Nodes: *stormNodes, RedialMin: 2 * time.Second, RedialMax: 15 * time.Second, StalledMax: time.Minute,
		DialTimeout: 5 * time.Second, HandshakeTimeout: 20 * time.Second,
	})
	defer storm.Stop()
	logged := time.Duration(0)
	kit.Within(t, 5*time.Minute, "all nodes are linked", func() bool {
		linked := storm.Linked()
		if now := time.Since(began); now >= logged || linked == *stormNodes {
			t.Logf("%3.0f s: %d linked, %d dials", now.Seconds(), linked, storm.Dials())
			logged = now + 5*time.Second
		}
		return linked == *stormNodes
	})
}
