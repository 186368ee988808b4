package logload

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/loadtest/procfs"
	"github.com/frond-edge/frond/loadtest/results"
)

const (
	// goroutineSlack allows for goroutines that do not belong to streams, heapSlack for bytes of heap.
	goroutineSlack = 20
	heapSlack      = 8e6
)

// streamCost is what streams cost a process while they are open: its own numbers, of which a hub server has none, and its memory. The
// heap counts in bytes, garbage included; collected is the time of the last garbage collection in seconds since 1970.
type streamCost struct{ streams, goroutines, heap, collected, rss float64 }

// readCosts reads the cost of every process that streams pass.
func (l *Load) readCosts(ctx context.Context) (map[string]streamCost, error) {
	spec, all := l.Cluster.Spec(), map[string]streamCost{}
	ends := append(folder.Names("cloudcore", spec.Cloudcores), l.Edges...)
	for _, part := range append(folder.Names("hub", spec.Hubs), ends...) {
		var c streamCost
		if slices.Contains(ends, part) {
			for name, value := range map[string]*float64{
				"frond_tunnel_streams": &c.streams, "go_goroutines": &c.goroutines,
				"go_memstats_heap_alloc_bytes": &c.heap, "go_memstats_last_gc_time_seconds": &c.collected,
			} {
				var err error
				if *value, err = l.Cluster.Metric(ctx, part, name); err != nil {
					return nil, err
				}
			}
		}
		now, err := procfs.ReadMemory(l.Cluster.PID(part))
		if err != nil {
			return nil, fmt.Errorf("memory of %s: %w", part, err)
		}
		c.rss = now.RSS
		all[part] = c
	}
	return all, nil
}

// awaitReleased waits until each process has its earlier numbers of streams and goroutines. With Collected it also waits until each has
// collected its garbage since now, which an idle one does every 2 min, and then has no larger heap than before.
func (l *Load) awaitReleased(ctx context.Context, before map[string]streamCost) error {
	since := float64(time.Now().UnixNano()) / 1e9
	left := maps.Clone(before)
	err := poll.Until(ctx, "what readers took is given back", func(ctx context.Context) (bool, error) {
		now, err := l.readCosts(ctx)
		maps.DeleteFunc(left, func(part string, had streamCost) bool {
			has := now[part]
			collected := has.collected > since && has.heap <= had.heap+heapSlack || had.heap == 0 || !l.Collected
			return has.streams <= had.streams && has.goroutines <= had.goroutines+goroutineSlack && collected
		})
		return len(left) == 0, err
	})
	if err != nil {
		return fmt.Errorf("%w: before %v", err, left)
	}
	return nil
}

// recordCosts records the memory of each kind of process before the readers came, with all of them, and after.
func (l *Load) recordCosts(before, with, after map[string]streamCost) {
	for _, kind := range []string{"cloudcore", "hub", "edge"} {
		for i, moment := range []string{"before", "with all readers", "after"} {
			name := "each " + kind + " " + moment
			for part, c := range []map[string]streamCost{before, with, after}[i] {
				if !strings.HasPrefix(part, kind) {
					continue
				}
				l.Recorder.Record(results.Measure{Text: name + ": RSS", Unit: results.Memory}, c.rss/1e6)
				if c.heap != 0 {
					l.Recorder.Record(results.Measure{Text: name + ": heap", Unit: results.Memory}, c.heap/1e6)
				}
			}
		}
	}
}
