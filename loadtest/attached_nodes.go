package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/frond-edge/frond/loadtest/hubload"
	"github.com/frond-edge/frond/loadtest/poll"
)

// attachedNodes connects many nodes to one hub server of their own and measures its memory at each of these numbers of nodes, which
// ascend. The nodes are simulated at the protocol level (leafClient). The server, the attaches and the consumers are real; each node has
// hubload.ObjectsEach objects and an open pull.
func attachedNodes(numbers []int, settle time.Duration) scenario {
	return scenario{"attached nodes", func(ctx context.Context, w *Environment) (err error) {
		server, err := hubload.Start(ctx, numbers[len(numbers)-1])
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
		return measureAttached(ctx, w, server, numbers, settle)
	}}
}

// measureAttached attaches more and more nodes. Their connections last until the server is closed.
func measureAttached(ctx context.Context, w *Environment, server *hubload.Server, numbers []int, settle time.Duration) error {
	const kb, mb, gb = 1e3, 1e6, 1e9
	if err := poll.Sleep(ctx, settle); err != nil {
		return err
	}
	idle, err := readMemory(server.PID())
	if err != nil {
		return err
	}
	w.record(measure{text: "hub server without nodes: RSS", unit: unitMemory}, float64(idle.rss)/mb)
	cloud, err := server.NewCloud()
	if err != nil {
		return err
	}
	defer cloud.Close()
	var resident []float64
	for _, n := range numbers {
		began := time.Now()
		if err := server.AttachNodes(ctx, cloud, n); err != nil {
			return err
		}
		took := time.Since(began)
		if err := poll.Sleep(ctx, settle); err != nil {
			return err
		}
		now, err := readMemory(server.PID())
		if err != nil {
			return err
		}
		at := fmt.Sprintf("hub server with %d nodes of %d objects", n, hubload.ObjectsEach)
		w.recordLine(measure{text: at + ": RSS", unit: unitMemory}, float64(now.rss)/mb)
		w.recordLine(measure{text: "  a node more than without: RSS", unit: unitSmall}, float64(now.rss-idle.rss)/float64(n)/kb)
		w.recordLine(measure{text: "  of it RssAnon", unit: unitSmall}, float64(now.anonymous-idle.anonymous)/float64(n)/kb)
		w.recordLine(measure{text: "  the last of them attached after", unit: unitTime}, milliseconds(took))
		resident = append(resident, float64(now.rss))
		w.logProgress("%s: %d in %.0f ms, %d MB", w.name, n, milliseconds(took), now.rss/1e6)
	}
	if last := len(numbers) - 1; last > 0 {
		slope := (resident[last] - resident[0]) / float64(numbers[last]-numbers[0])
		w.record(measure{text: "by that slope, 100,000 nodes", unit: unitLarge}, (float64(idle.rss)+slope*100_000)/gb)
	}
	return server.VerifyDelivery(ctx, cloud)
}
