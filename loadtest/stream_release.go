package loadtest

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/frond-edge/frond/loadtest/poll"
)

const (
	// spareInstances of inotify are left to other processes of this machine.
	spareInstances = 8
	// goroutineSlack allows for goroutines that do not belong to streams.
	goroutineSlack = 20
	// heapSlack allows for heap that does not belong to streams, in bytes.
	heapSlack = 8e6
)

// allowedFollowers returns how many logs can be followed on this machine now, at most as many as wanted. A kubelet takes an instance of
// inotify for each, and all gateways of a cluster run as one user, to whom fs.inotify.max_user_instances applies.
func allowedFollowers(wanted int) (int, error) {
	var open []int
	defer func() {
		for _, fd := range open {
			_ = unix.Close(fd) // it was never used
		}
	}()
	for len(open) < wanted+spareInstances {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			break // the limit is reached
		}
		open = append(open, fd)
	}
	if len(open) <= spareInstances {
		return 0, fmt.Errorf("logs cannot be followed: %d instances of inotify are left (fs.inotify.max_user_instances)", len(open))
	}
	return len(open) - spareInstances, nil
}

// streamCost is what streams cost a process while they are open; heap in bytes, garbage included.
type streamCost struct{ streams, goroutines, heap float64 }

// readStreamCosts reads the streams, goroutines and heap of cloudcores and gateways.
func readStreamCosts(ctx context.Context, w *Environment) (map[string]streamCost, error) {
	all := map[string]streamCost{}
	for _, part := range tunnelEnds(w) {
		streams, err := w.cluster.Metric(ctx, part, "frond_tunnel_streams")
		if err != nil {
			return nil, err
		}
		goroutines, err := w.cluster.Metric(ctx, part, "go_goroutines")
		if err != nil {
			return nil, err
		}
		heap, err := w.cluster.Metric(ctx, part, heapMetric)
		if err != nil {
			return nil, err
		}
		all[part] = streamCost{streams: streams, goroutines: goroutines, heap: heap}
	}
	return all, nil
}

// tunnelEnds lists the processes at the ends of tunnels.
func tunnelEnds(w *Environment) []string {
	parts := w.edgeNames()
	for i := range w.cluster.Spec().Cloudcores {
		parts = append(parts, fmt.Sprint("cloudcore-", i+1))
	}
	return parts
}

// awaitReleased waits until the numbers of streams and goroutines are back at their earlier values.
func awaitReleased(ctx context.Context, w *Environment, before map[string]streamCost) error {
	var missing string
	err := poll.Until(ctx, "what readers took is given back", func(ctx context.Context) (bool, error) {
		now, err := readStreamCosts(ctx, w)
		if err != nil {
			return false, err
		}
		missing = ""
		for part, had := range before {
			if has := now[part]; has.streams > had.streams || has.goroutines > had.goroutines+goroutineSlack {
				missing += fmt.Sprintf(" %s had %v, has %v;", part, had, has)
			}
		}
		return missing == "", nil
	})
	if err != nil {
		return fmt.Errorf("%w:%s", err, missing)
	}
	return nil
}

const (
	heapMetric = "go_memstats_heap_alloc_bytes"
	// collectMetric is the time of the last garbage collection, in seconds since 1970.
	collectMetric = "go_memstats_last_gc_time_seconds"
)

// awaitCollected waits until each process has collected its garbage since now, and then has no larger heap than before.
func awaitCollected(ctx context.Context, w *Environment, before map[string]streamCost) error {
	since := float64(time.Now().UnixNano()) / 1e9
	left := maps.Clone(before)
	var missing string
	err := poll.Until(ctx, "heaps are as small as before", func(ctx context.Context) (bool, error) {
		missing = ""
		for part, had := range left {
			last, err := w.cluster.Metric(ctx, part, collectMetric)
			if err != nil {
				return false, err
			}
			heap, err := w.cluster.Metric(ctx, part, heapMetric)
			if err != nil {
				return false, err
			}
			if last > since && heap <= had.heap+heapSlack {
				delete(left, part)
				continue
			}
			missing += fmt.Sprintf(" %s had %.1f MB and has %.1f;", part, had.heap/1e6, heap/1e6)
		}
		return len(left) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("%w:%s", err, missing)
	}
	return nil
}

// The moments at which memory is measured.
const (
	memoryBefore = "before"
	memoryWith   = "with all readers"
	memoryAfter  = "after"
)

// followMemory is the memory of each kind of process at each moment, in MB: resident, and for the tunnels' ends also the heap.
type followMemory struct {
	rss, heap map[string][]float64
}

// recordMoment measures the memory of all processes at the ends and in between.
func (m *followMemory) recordMoment(ctx context.Context, w *Environment, moment string) error {
	if m.rss == nil {
		m.rss, m.heap = map[string][]float64{}, map[string][]float64{}
	}
	ends, err := readStreamCosts(ctx, w)
	if err != nil {
		return err
	}
	for part, now := range ends {
		kind, _, _ := strings.Cut(part, "-")
		m.heap[kind+moment] = append(m.heap[kind+moment], now.heap/1e6)
	}
	parts := tunnelEnds(w)
	for i := range w.cluster.Spec().Hubs {
		parts = append(parts, fmt.Sprint("hub-", i+1))
	}
	for _, part := range parts {
		now, err := readMemory(w.cluster.PID(part))
		if err != nil {
			return fmt.Errorf("memory of %s: %w", part, err)
		}
		kind, _, _ := strings.Cut(part, "-")
		m.rss[kind+moment] = append(m.rss[kind+moment], float64(now.rss)/1e6)
	}
	return nil
}

// report records the memory of each kind of process.
func (m *followMemory) report(w *Environment) {
	for _, kind := range []string{"cloudcore", "hub", "edge"} {
		for _, moment := range []string{memoryBefore, memoryWith, memoryAfter} {
			name := "each " + kind + " " + moment
			w.record(measure{text: name + ": RSS", unit: unitMemory}, m.rss[kind+moment]...)
			if heap := m.heap[kind+moment]; len(heap) > 0 {
				w.record(measure{text: name + ": heap", unit: unitMemory}, heap...)
			}
		}
	}
}
