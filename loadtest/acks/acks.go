// Package acks hears the acks of gateways at the hub, and waits until they have certain versions of objects.
package acks

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/loadtest/poll"
	"github.com/frond-edge/frond/loadtest/workload"
	"github.com/frond-edge/frond/streams/metrics"
	"github.com/frond-edge/frond/streams/publish"
	"github.com/frond-edge/frond/streams/subject"
)

// Log records every ack of desired state that passes the hub.
type Log struct {
	// publisher reads the stream's messages for a node; it never publishes.
	publisher *publish.Publisher
	// arrived holds a value after acks that awaitCount has not counted.
	arrived chan struct{}

	mu sync.Mutex
	// at holds, by node and stream sequence, when the hub received the first ack since the last reset; guarded by mu.
	at map[string]map[uint64]time.Time
}

// Subscribe begins to record. It ends with the connection.
func Subscribe(nc *nats.Conn) (*Log, error) {
	publisher, err := publish.NewPublisher(nc, subject.Layout{}, metrics.New(nil))
	if err != nil {
		return nil, err
	}
	a := &Log{publisher: publisher, arrived: make(chan struct{}, 1), at: map[string]map[uint64]time.Time{}}
	if _, err := nc.Subscribe("$JS.ACK."+subject.DesiredStream+".>", a.recordAck); err != nil {
		return nil, fmt.Errorf("hear acks: %w", err)
	}
	if err := nc.Flush(); err != nil {
		return nil, fmt.Errorf("hear acks: %w", err)
	}
	return a, nil
}

// recordAck reads $JS.ACK.<stream>.<consumer>.<attempt>.<stream sequence>.<consumer sequence>.<time>.<pending>.
func (a *Log) recordAck(msg *nats.Msg) {
	now := time.Now()
	tokens := strings.Split(msg.Subject, ".")
	if len(tokens) != 9 || len(msg.Data) > 0 && !strings.HasPrefix(string(msg.Data), "+ACK") {
		return // a nak or progress
	}
	node, err := wire.Unescape(tokens[3])
	if err != nil {
		return
	}
	sequence, err := strconv.ParseUint(tokens[5], 10, 64)
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at[node] == nil {
		a.at[node] = map[uint64]time.Time{}
	}
	if _, again := a.at[node][sequence]; !again {
		a.at[node][sequence] = now
	}
	select {
	case a.arrived <- struct{}{}:
	default:
	}
}

// Reset discards the acks received so far.
func (a *Log) Reset() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.at)
}

// find returns the time of a node's ack.
func (a *Log) find(node string, sequence uint64) (at time.Time, acked bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, acked = a.at[node][sequence]
	return at, acked
}

// awaitCount waits until these nodes have sent this many acks, and returns how many they sent.
func (a *Log) awaitCount(ctx context.Context, nodes []string, want int) (int, error) {
	for {
		count := 0
		a.mu.Lock()
		for _, node := range nodes {
			count += len(a.at[node])
		}
		a.mu.Unlock()
		if count >= want {
			return count, nil
		}
		select {
		case <-a.arrived:
		case <-ctx.Done():
			return count, fmt.Errorf("%d of %d acks: %w", count, want, context.Cause(ctx))
		}
	}
}

// Await waits until every node has acked these versions of these objects since the last reset, and returns the time of the last ack.
// It first counts acks, so that it sends the hub no other request while the hub is busy.
func (a *Log) Await(ctx context.Context, nodes []string, versions workload.Versions) (last time.Time, err error) {
	ctx, cancel := poll.WithTimeout(ctx)
	defer cancel()
	for want := len(nodes) * len(versions); ; { // more acks than objects: others were among them
		heard, err := a.awaitCount(ctx, nodes, want)
		if err != nil {
			return last, err
		}
		missing := 0
		for _, node := range nodes {
			n, err := a.countMissing(ctx, node, versions, func(m wire.Message) bool {
				at, acked := a.find(node, m.Sequence)
				if at.After(last) {
					last = at
				}
				return acked
			})
			if err != nil {
				return last, err
			}
			missing += n
		}
		if missing == 0 {
			return last, nil
		}
		want = heard + missing
	}
}

// countMissing counts the versions that the stream does not hold for a node, or that the node does not have by the message.
func (a *Log) countMissing(ctx context.Context, node string, versions workload.Versions, has func(wire.Message) bool) (missing int, err error) {
	held, err := a.publisher.Held(ctx, node)
	for key, version := range versions {
		if m := held[key]; m.Op != wire.Apply || m.Version != version || !has(m) {
			missing++
		}
	}
	return missing, err
}

// AwaitPublished waits until the stream holds these versions for a node.
func (a *Log) AwaitPublished(ctx context.Context, node string, versions workload.Versions) error {
	return poll.Until(ctx, "the changes are published", func(ctx context.Context) (bool, error) {
		missing, err := a.countMissing(ctx, node, versions, func(wire.Message) bool { return true })
		return err == nil && missing == 0, nil // a busy hub does not answer in time: it is asked again
	})
}

// AwaitReleased waits until the stream has tombstones for all ConfigMaps of scenarios, which no pod may need any more.
func (a *Log) AwaitReleased(ctx context.Context, nodes []string) error {
	return poll.Until(ctx, "the nodes gave up what they no longer need", func(ctx context.Context) (bool, error) {
		for _, node := range nodes {
			held, err := a.publisher.Held(ctx, node)
			if err != nil {
				return false, nil //nolint:nilerr // a busy hub does not answer in time: it is asked again
			}
			for key, m := range held {
				if m.Op != wire.Delete && workload.Owns(key) {
					return false, nil
				}
			}
		}
		return true, nil
	})
}
