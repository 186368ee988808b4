package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/frond-edge/frond/loadtest/hubload"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/loadtest/procfs"
	"github.com/frond-edge/frond/loadtest/results"
)

// measureIdleLinks counts the bytes of idle links: heartbeats, pings, open pulls, lease renewals and statuses. Each gateway is a sample.
func measureIdleLinks(ctx context.Context, w *environment) error {
	began := time.Now()
	before, err := w.cluster.States(ctx)
	if err != nil {
		return err
	}
	if err := poll.Sleep(ctx, w.size.Window); err != nil {
		return err
	}
	after, err := w.cluster.States(ctx)
	if err != nil {
		return err
	}
	hours := time.Since(began).Hours()
	for _, edge := range w.edges {
		down, up := after[edge].DownBytes-before[edge].DownBytes, after[edge].UpBytes-before[edge].UpBytes
		w.recorder.Record(measure{Text: fmt.Sprintf("over the link in an hour, from %s: down", w.size.Window), Unit: results.Traffic}, float64(down)/mb/hours)
		w.recorder.Record(measure{Text: "  up", Unit: results.Traffic}, float64(up)/mb/hours)
	}
	return nil
}

// measureAttached connects many nodes to one hub server of their own and measures its memory at each of Size.Attached, which ascend. Only
// the nodes are simulated: each has hubload.ObjectsEach objects and an open pull.
func measureAttached(ctx context.Context, w *environment) (err error) {
	const kb, gb = 1e3, 1e9
	numbers := w.size.Attached
	most := numbers[len(numbers)-1]
	server, err := hubload.Start(ctx, most)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	settled := func() (procfs.Memory, error) {
		if err := poll.Sleep(ctx, w.size.Settle); err != nil {
			return procfs.Memory{}, err
		}
		return procfs.ReadMemory(server.PID())
	}
	idle, err := settled()
	if err != nil {
		return err
	}
	w.recorder.Record(measure{Text: "hub server without nodes: RSS", Unit: results.Memory}, idle.RSS/mb)
	var resident []float64
	for _, n := range numbers {
		began := time.Now()
		if err := server.AttachNodes(ctx, n); err != nil {
			return err
		}
		took := time.Since(began)
		now, err := settled()
		if err != nil {
			return err
		}
		of := fmt.Sprintf("hub server with %d nodes of %d objects: RSS", n, hubload.ObjectsEach)
		w.recorder.RecordLine(measure{Text: of, Unit: results.Memory}, now.RSS/mb)
		w.recorder.RecordLine(measure{Text: "  a node more than without: RSS", Unit: results.SmallMemory}, (now.RSS-idle.RSS)/float64(n)/kb)
		w.recorder.RecordLine(measure{Text: "  of it RssAnon", Unit: results.SmallMemory}, (now.Anonymous-idle.Anonymous)/float64(n)/kb)
		w.recorder.RecordLine(measure{Text: "  the last of them attached after", Unit: results.Time}, results.Milliseconds(took))
		resident = append(resident, now.RSS)
	}
	if last := len(numbers) - 1; last > 0 {
		slope := (resident[last] - resident[0]) / float64(most-numbers[0])
		w.recorder.Record(measure{Text: "by that slope, 100,000 nodes", Unit: results.LargeMemory}, (idle.RSS+slope*100_000)/gb)
	}
	return server.VerifyDelivery(ctx)
}
