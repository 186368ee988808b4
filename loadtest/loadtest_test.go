package loadtest_test

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/frond-edge/frond/internal/toolchain"
	"github.com/frond-edge/frond/loadtest"
	"github.com/frond-edge/frond/test/kit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(kit.AwaitGoroutines(m)) }

// TestRun_ShortSize runs each scenario once on real clusters. The numbers mean nothing; the test proves that each delivery was acked
// and compared.
func TestRun_ShortSize(t *testing.T) {
	if testing.Short() {
		t.Skip("starts two clusters: not with -short")
	}
	if _, err := toolchain.Find(t.Context(), toolchain.Request{Kube: true, Nats: true}); err != nil {
		if slices.Contains(strings.Split(os.Getenv("REQUIRE"), ","), "kube") {
			t.Fatalf("REQUIRE names kube: %v", err)
		}
		t.Skipf("no control plane, make tools builds it: %v", err)
	}
	report, err := loadtest.Run(t.Context(), loadtest.Options{
		Command: "go test", Dir: t.TempDir(), Seed: 1, Size: loadtest.Short(), Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	scenarios := map[string]bool{}
	for _, l := range report.Lines {
		scenarios[l.Scenario] = true
		if l.N == 0 || math.IsNaN(l.P50) || math.IsInf(l.P50, 0) {
			t.Errorf("%s, %s: %+v", l.Scenario, l.Text, l.Summary)
		}
	}
	for _, want := range []string{
		"hollow: one update", "hollow: burst", "hollow: arrival", "hollow: pod start", "fan-out: fan-out", "fan-out: arrival",
		"delivery: idle", "delivery: takeover", "delivery: first delivery", "delivery: burst over a slow link", "delivery: catch-up", "attached: attached nodes",
		"away: catch-up", "tunnel: logs -f", "tunnel: logs -f, a tunnel each",
		"devices: memory without devices", "devices: memory", "devices: samples", "devices: backfill", "devices: desired values by MQTT", "devices: mapper",
	} {
		if !scenarios[want] {
			t.Errorf("%s is not in the report", want)
		}
	}
	if err := report.Print(t.Output()); err != nil {
		t.Error(err)
	}
}
