package loadtest

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// spareInstances of inotify are left to everybody else on this machine.
	spareInstances = 8
	// comeAndGo are goroutines that have nothing to do with streams: they come and go all the time.
	comeAndGo = 20
)

// followers is how many logs can be followed on this machine now, at most as many as wanted: a kubelet takes an instance of
// inotify for each, and all gateways of a cluster run as one user, for whom fs.inotify.max_user_instances counts.
func followers(wanted int) (int, error) {
	var open []int
	defer func() {
		for _, fd := range open {
			_ = unix.Close(fd) // it was never used
		}
	}()
	for len(open) < wanted+spareInstances {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			break // there are no more
		}
		open = append(open, fd)
	}
	if len(open) <= spareInstances {
		return 0, fmt.Errorf("logs cannot be followed: %d instances of inotify are left (fs.inotify.max_user_instances)", len(open))
	}
	return len(open) - spareInstances, nil
}

// holding is what streams cost a process while they last.
type holding struct{ streams, goroutines float64 }

// holdings reads what cloudcores and gateways hold.
func (w *World) holdings(ctx context.Context) (map[string]holding, error) {
	all := map[string]holding{}
	for _, part := range w.ends() {
		streams, err := w.cluster.Metric(ctx, part, "frond_tunnel_streams")
		if err != nil {
			return nil, err
		}
		goroutines, err := w.cluster.Metric(ctx, part, "go_goroutines")
		if err != nil {
			return nil, err
		}
		all[part] = holding{streams: streams, goroutines: goroutines}
	}
	return all, nil
}

// ends are the processes at the ends of tunnels.
func (w *World) ends() []string {
	parts := w.edges()
	for i := range w.cluster.Spec().Cloudcores {
		parts = append(parts, fmt.Sprint("cloudcore-", i+1))
	}
	return parts
}

// givenBack waits until streams and goroutines are as few as they were.
func (w *World) givenBack(ctx context.Context, before map[string]holding) error {
	var missing string
	err := until(ctx, "what readers took is given back", func(ctx context.Context) (bool, error) {
		now, err := w.holdings(ctx)
		if err != nil {
			return false, err
		}
		missing = ""
		for part, had := range before {
			if has := now[part]; has.streams > had.streams || has.goroutines > had.goroutines+comeAndGo {
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

// The moments at which memory is read.
const (
	memoryBefore = "before"
	memoryWith   = "with all readers"
	memoryAfter  = "after"
)

// followMemory is the resident memory of each kind of process at each moment, in MB.
type followMemory struct {
	gateways int
	rss      map[string][]float64
}

// sample reads the memory of all processes at the ends and in the middle.
func (m *followMemory) sample(w *World, moment string) error {
	if m.rss == nil {
		m.rss, m.gateways = map[string][]float64{}, len(w.edges())
	}
	parts := w.ends()
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

func (m *followMemory) lines(scenario string) (lines []Line) {
	for _, kind := range []string{"cloudcore", "hub", "edge"} {
		for _, moment := range []string{memoryBefore, memoryWith, memoryAfter} {
			lines = append(lines, Line{Scenario: scenario, Measure: "each " + kind + " " + moment + ": RSS", Unit: unitMemory, Summary: Summarize(m.rss[kind+moment])})
		}
	}
	return lines
}
