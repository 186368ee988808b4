package loadtest

import (
	"context"
	"fmt"
	"time"

	"github.com/frond-edge/frond/loadtest/poll"
)

// idleTraffic counts the bytes of idle links: heartbeats, pings, open pulls, lease renewals and statuses. Each gateway is a sample.
func idleTraffic(window time.Duration) scenario {
	return scenario{"idle", func(ctx context.Context, w *Environment) error {
		edges := w.edgeNames()
		began := time.Now()
		before := w.cluster.Status(ctx).Edges
		if err := poll.Sleep(ctx, window); err != nil {
			return err
		}
		after := w.cluster.Status(ctx).Edges
		if len(before) != len(edges) || len(after) != len(edges) {
			return fmt.Errorf("%d and %d gateways tell of their links, want %d", len(before), len(after), len(edges))
		}
		const mb = 1e6
		hours := time.Since(began).Hours()
		for i := range after {
			w.record(measure{text: fmt.Sprintf("over the link in an hour, from %s: down", window), unit: unitTraffic}, float64(after[i].DownBytes-before[i].DownBytes)/mb/hours)
			w.record(measure{text: "  up", unit: unitTraffic}, float64(after[i].UpBytes-before[i].UpBytes)/mb/hours)
		}
		return nil
	}}
}
