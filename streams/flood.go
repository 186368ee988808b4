package streams

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// reportsKept and eventsKept are how many reports and events of one node may wait in the stream: far more than a gateway has
	// pods. A stream gives its messages out in order, so what one node has in it all others wait for.
	reportsKept = 2048
	eventsKept  = 4096
	// floodAfter is how many of a node's messages must have been put off within floodEvery before the stream is looked at. With what
	// is in hand, a gateway with 300 pods that reports all of them at once stays below.
	floodAfter = 256
	floodEvery = time.Second
)

// flood counts the messages that were put off, by the token of their node.
type flood struct {
	mu    sync.Mutex
	nodes map[string]int // guarded by mu
}

func newFlood() *flood { return &flood{nodes: map[string]int{}} }

func (f *flood) note(node string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.nodes[node]++
}

// take returns the nodes that have too many, and begins anew.
func (f *flood) take() (nodes []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for node, n := range f.nodes {
		if n >= floodAfter {
			nodes = append(nodes, node)
		}
	}
	clear(f.nodes)
	return nodes
}

// stem removes the oldest messages of nodes that flood the stream, until ctx ends.
func (r *Reports) stem(ctx context.Context, f *flood) {
	ticker := time.NewTicker(floodEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, node := range f.take() {
			removed, err := r.removeOldest(ctx, node)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				r.log.Warn("a node's messages not removed, tried again", zap.String("node", node), zap.Error(err))
				continue
			}
			if removed > 0 {
				r.metrics.reports.WithLabelValues(string(r.plane), "flooded").Add(float64(removed))
				r.log.Warn("a node floods the stream, its oldest messages are removed", zap.String("node", node), zap.String("stream", r.stream),
					zap.Uint64("removed", removed), zap.Int("kept", r.kept))
			}
		}
	}
}

// removeOldest leaves of a node what may wait in the stream, and says how many messages that was not.
func (r *Reports) removeOldest(ctx context.Context, node string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := json.Marshal(map[string]any{"filter": string(r.plane) + "." + node + ".>", "keep": r.kept})
	if err != nil {
		return 0, err
	}
	// The library's own does not say how many there were.
	msg, err := r.js.Conn().RequestWithContext(ctx, "$JS.API.STREAM.PURGE."+r.stream, request)
	if err != nil {
		return 0, fmt.Errorf("purge: %w", err)
	}
	var reply struct {
		Purged uint64 `json:"purged"`
		Error  *struct {
			Description string `json:"description"`
		} `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &reply); err != nil {
		return 0, fmt.Errorf("purge: %w", err)
	}
	if reply.Error != nil {
		return 0, fmt.Errorf("purge: %s", reply.Error.Description)
	}
	return reply.Purged, nil
}
