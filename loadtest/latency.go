package loadtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/frond-edge/frond/loadtest/poll"
)

const (
	// warmUpUpdates are updates that are not measured: they warm the connections and caches of all processes.
	warmUpUpdates = 20
	// singleAim, in ms, is less than half of the peer's p50 of 13.7 ms.
	singleAim = 5
	// firstAim: two replicas shall be as fast as one of the peer.
	firstAim     = 24
	firstPeerTwo = "894, p90 5000"
	firstPeerOne = "24, p90 43"
	takeoverAim  = 2000
	takeoverPeer = "34000-39000"
)

// deliverOne writes one ConfigMap of the first node and waits for its ack. It returns the time until the ack, and until the apiserver's
// answer.
func deliverOne(ctx context.Context, w *Environment, how writeFunc, name string) (acked, written time.Duration, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, poll.Timeout, fmt.Errorf("not within %s", poll.Timeout))
	defer cancel()
	w.acks.dropPending()
	began := time.Now()
	versions, err := w.putAll(ctx, how, []string{name})
	if err != nil {
		return 0, 0, err
	}
	written = time.Since(began)
	last, err := w.awaitAcks(ctx, w.edgeNames()[:1], versions)
	if err != nil {
		return 0, 0, fmt.Errorf("%s: %w", name, errors.Join(err, context.Cause(ctx)))
	}
	return last.Sub(began), written, nil
}

// mountOne creates a ConfigMap and a pod of the first node that mounts it.
func mountOne(ctx context.Context, w *Environment, name string) error {
	if _, err := w.putAll(ctx, w.createConfigMap, []string{name}); err != nil {
		return err
	}
	return w.launchPods(ctx, pausePod(name, w.edgeNames()[0], []string{name}))
}

// singleUpdate updates one ConfigMap that a pod of a node mounts, and waits for the ack before the next update. It measures the time
// from the API call to the gateway's disk and back.
func singleUpdate(updates int) scenario {
	const name = "single"
	return scenario{"one update", func(ctx context.Context, w *Environment) error {
		if err := mountOne(ctx, w, name); err != nil {
			return err
		}
		for i := range warmUpUpdates + updates {
			acked, written, err := deliverOne(ctx, w, w.updateConfigMap, name)
			if err != nil {
				return err
			}
			if i < warmUpUpdates {
				continue
			}
			w.recordTime(measure{text: "API call → on the gateway's disk and acked", peer: "13.7, p99 26", aim: singleAim}, acked)
			w.recordTime(measure{text: "  of it until the apiserver answered"}, written)
		}
		return nil
	}}
}

// firstDelivery creates objects that are new to a node, one at a time, with two cloudcores and then with the first alone.
func firstDelivery(objects int) scenario {
	return scenario{"first delivery", func(ctx context.Context, w *Environment) (err error) {
		list := numberedNames("first", 2*objects)
		if err := w.launchPods(ctx, pausePod("first", w.edgeNames()[0], list)); err != nil {
			return err
		}
		deliver := func(list []string, cloudcores, peer string) error {
			for _, name := range list {
				acked, _, err := deliverOne(ctx, w, w.createConfigMap, name)
				if err != nil {
					return err
				}
				w.recordTime(measure{text: "new ConfigMap → on disk and acked, " + cloudcores, peer: peer, aim: firstAim}, acked)
			}
			return nil
		}
		if err := awaitMembers(ctx, w, "cloudcore-1", "cloudcore-2"); err != nil {
			return err
		}
		if err := deliver(list[:objects], "2 cloudcores", firstPeerTwo); err != nil {
			return err
		}
		const other = "cloudcore-2"
		if err := w.cluster.Kill(ctx, other); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, w.cluster.Start(context.WithoutCancel(ctx), other)) }()
		if err := awaitMembers(ctx, w, "cloudcore-1"); err != nil {
			return err
		}
		return deliver(list[objects:], "1 cloudcore", firstPeerOne)
	}}
}

// takeover kills the cloudcore that owns a node and changes an object at once. It measures the time until the change is on the node's
// disk.
func takeover(kills int) scenario {
	const name = "takeover"
	return scenario{"takeover", func(ctx context.Context, w *Environment) error {
		if err := mountOne(ctx, w, name); err != nil {
			return err
		}
		for range kills {
			if err := awaitMembers(ctx, w, "cloudcore-1", "cloudcore-2"); err != nil {
				return err
			}
			took, err := killOwner(ctx, w, name)
			if err != nil {
				return err
			}
			w.recordTime(measure{text: "kill -9 of the owner, with a change at once → on the gateway's disk and acked", peer: takeoverPeer, aim: takeoverAim}, took)
		}
		return nil
	}}
}

// killOwner kills the owner of the first node, changes an object, and starts the owner again.
func killOwner(ctx context.Context, w *Environment, object string) (took time.Duration, err error) {
	owner, err := nodeOwner(ctx, w, w.edgeNames()[0])
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := w.cluster.Kill(ctx, owner); err != nil {
		return 0, fmt.Errorf("kill %s: %w", owner, err)
	}
	defer func() { err = errors.Join(err, w.cluster.Start(context.WithoutCancel(ctx), owner)) }()
	killed := time.Since(began)
	acked, _, err := deliverOne(ctx, w, w.updateConfigMap, object)
	return killed + acked, err
}
