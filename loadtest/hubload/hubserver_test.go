package hubload_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/loadtest/hubload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestServer_EachNodeGetsAChange attaches nodes in two steps, as the scenario does.
func TestServer_EachNodeGetsAChange(t *testing.T) {
	if _, err := toolchain.Find(t.Context(), toolchain.Request{Nats: true}); err != nil {
		if slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), "kube") {
			t.Fatalf("REQUIRE names kube: %v", err)
		}
		t.Skipf("no nats-server, make tools builds it: %v", err)
	}
	server, err := hubload.Start(t.Context(), 12)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, n := range []int{3, 12} {
		if err := server.AttachNodes(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if err := server.VerifyDelivery(t.Context()); err != nil {
		t.Fatal(err)
	}
}
