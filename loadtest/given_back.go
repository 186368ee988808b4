package loadtest

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
)

const (
	// instances other than those of followed logs: what twenty gateways, the control plane and the machine itself use.
	otherInstances = 64
	inotifyLimit   = "/proc/sys/fs/inotify/max_user_instances"
	// comeAndGo are goroutines that have nothing to do with streams: they come and go all the time.
	comeAndGo = 20
)

// followers is how many logs can be followed on this machine, at most as many as wanted.
func followers(wanted int) (int, error) {
	text, err := os.ReadFile(inotifyLimit)
	if err != nil {
		return 0, fmt.Errorf("read the limit of followers: %w", err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read the limit of followers: %w", err)
	}
	if limit <= otherInstances {
		return 0, fmt.Errorf("%s is %d: at least %d more are needed", inotifyLimit, limit, otherInstances+1-limit)
	}
	return min(wanted, limit-otherInstances), nil
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
