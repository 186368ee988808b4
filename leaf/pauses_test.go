package leaf

import (
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
)

// idleRemote is a hub that is never reached.
type idleRemote struct{}

func (idleRemote) connection() (uint64, string)  { return 0, "" }
func (idleRemote) messagesReceived(uint64) int64 { return 0 }
func (idleRemote) closeLink(uint64)              {}
func (idleRemote) replaceRemote() error          { return nil }

// The pauses between dials grow up to what the cloud told, not up to what was configured.
func TestLinkSupervisor_PausesUpToTheToldMaximum(t *testing.T) {
	cfg := Config{Node: "edge-1", Dir: t.TempDir(), RedialMax: 15 * time.Second, StalledMax: time.Minute}
	server, err := New(cfg, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	supervisor := newLinkSupervisor(server.cfg, idleRemote{}, server, server.metrics, server.log)
	supervisor.backoff.Jitter = func() float64 { return 1 } // the whole pause
	start := time.Unix(1_700_000_000, 0)
	supervisor.backoff.StartOutage(start)
	for _, step := range []struct{ told, outage, pause time.Duration }{
		{0, time.Hour, 15 * time.Second},
		{90 * time.Second, time.Hour, 90 * time.Second},
		{90 * time.Second, time.Minute, 15 * time.Second}, // still a quarter of the outage
		{time.Second, time.Hour, 15 * time.Second},
	} {
		if step.told > 0 {
			server.SetRedialMax(step.told)
		}
		now := start.Add(step.outage)
		supervisor.dialHub(now)
		if got := supervisor.backoff.NextDial().Sub(now); got != step.pause {
			t.Errorf("told %v, after %v without a link: next dial in %v, want %v", step.told, step.outage, got, step.pause)
		}
	}
	server.SetRedialMax(2 * time.Minute)
	supervisor.limitPauses()
	if got := supervisor.backoff; got.Max != 2*time.Minute || got.StalledMax != 2*time.Minute {
		t.Errorf("bounds %v and %v, want both 2 min", got.Max, got.StalledMax)
	}
}
