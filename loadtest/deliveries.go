package loadtest

import (
	"fmt"

	"github.com/frond-edge/frond/loadtest/results"
	"github.com/frond-edge/frond/loadtest/workload"
)

// warmUpUpdates are updates that are not measured: they warm the connections and caches of all processes.
const warmUpUpdates = 20

// oneUpdate updates one ConfigMap that a pod of a node mounts, and waits for the ack before the next update. It measures the time from the
// API call to the gateway's disk and back. The aim is less than half of the peer's p50.
func oneUpdate(updates int) scenario {
	return scenario{
		name: "one update", object: "single", nodes: 1, objects: 1, warmUp: warmUpUpdates, rounds: updates,
		prepare: inOrder(createObjects, mountObjects), write: updateObjects, await: awaitDelivered,
		lines: []line{
			{measure{Text: "API call → on the gateway's disk and acked", Unit: results.Time, Peer: "13.7, p99 26", Aim: 5}, tookTime},
			{measure{Text: "  of it until the apiserver answered", Unit: results.Time}, answerTime},
		},
	}
}

// burst updates many ConfigMaps of one node by parallel writers.
func burst(objects, rounds int) scenario {
	return scenario{
		name: "burst", object: "burst", nodes: 1, objects: objects, rounds: rounds, countCPU: true,
		prepare: inOrder(createObjects, mountObjects, awaitDelivered), write: updateObjects, await: awaitDelivered,
		lines: []line{
			{measure{Text: fmt.Sprintf("%d updates to one node, first API call → last ack", objects), Unit: results.Rate, Peer: "31", Aim: 2000}, deliveryRate},
			{measure{Text: fmt.Sprintf("  the apiserver's part: %d writers, calls answered", workload.Writers), Unit: results.Rate}, answerRate},
			{measure{Text: "  the last ack after the last answer", Unit: results.Time}, lagTime},
		},
	}
}

// fanout creates new ConfigMaps that pods on many nodes wait for.
func fanout(nodes, objects, rounds int) scenario {
	return scenario{
		name: "fan-out", object: "fan-out", nodes: nodes, objects: objects, rounds: rounds, countCPU: true,
		prepare: mountObjects, write: createObjects, await: awaitDelivered, undo: inOrder(removeObjects, awaitTombstones),
		lines: []line{
			{measure{
				Text: fmt.Sprintf("%d new ConfigMaps × %d nodes, first API call → last ack", objects, nodes), Unit: results.Rate, Peer: "75", Aim: 5000,
			}, deliveryRate},
			{measure{Text: "  the apiserver's part: ConfigMaps written", Unit: results.Rate}, answerRate},
			{measure{Text: "  the last ack after the last answer", Unit: results.Time}, lagTime},
		},
	}
}

// arrival creates a pod on each of several nodes that mounts ConfigMaps which already exist: it measures deliveries without the
// apiserver's part, as after the pods of a rollout were bound.
func arrival(nodes, objects, rounds int, peer string, aim float64) scenario {
	return scenario{
		name: "arrival", object: "arrival", nodes: nodes, objects: objects, rounds: rounds, countCPU: true,
		prepare: createObjects, write: bindPods, await: awaitDelivered, undo: inOrder(removePods, awaitTombstones),
		lines: []line{{measure{
			Text: fmt.Sprintf("%d pods that mount %d present ConfigMaps, first pod made → last ack", nodes, objects), Unit: results.Rate, Peer: peer, Aim: aim,
		}, deliveryRate}},
	}
}

// overSlowLink measures while the first gateway's link has a long round trip, without the CPU time, which does not depend on it.
func (s scenario) overSlowLink() scenario {
	s.name += " over a slow link"
	s.countCPU = false
	s.prepare, s.finish = inOrder(s.prepare, slowDownLink), restoreLink
	s.lines[0].Text += ", round trip " + slowRoundTrip.String()
	s.lines[0].Peer, s.lines[0].Aim = "9", 1000
	return s
}

// takeover kills the cloudcore that owns a node and changes an object at once. It measures the time until the change is on the node's
// disk.
func takeover(kills int) scenario {
	return scenario{
		name: "takeover", object: "takeover", nodes: 1, objects: 1, rounds: kills,
		prepare: inOrder(createObjects, mountObjects), ready: inOrder(awaitCloudcores, chooseOwner),
		write: inOrder(killChosen, updateObjects), await: awaitDelivered, undo: startKilled,
		lines: []line{{measure{
			Text: "kill -9 of the owner, with a change at once → on the gateway's disk and acked", Unit: results.Time, Peer: "34000-39000", Aim: 2000,
		}, tookTime}},
	}
}

// firstDelivery creates objects that are new to a node, one at a time. Two replicas shall be as fast as one of the peer.
func firstDelivery(objects int, cloudcores, peer string) scenario {
	return scenario{
		name: "first delivery", object: "first", nodes: 1, objects: objects, single: true, rounds: objects,
		prepare: inOrder(mountObjects, awaitCloudcores), write: createObjects, await: awaitDelivered,
		lines: []line{{measure{Text: "new ConfigMap → on disk and acked, " + cloudcores, Unit: results.Time, Peer: peer, Aim: 24}, tookTime}},
	}
}

// byOneCloudcore measures while there is no second cloudcore, with objects of other names.
func (s scenario) byOneCloudcore() scenario {
	s.object += "-alone"
	s.prepare, s.finish = inOrder(s.prepare, leaveOneCloudcore), startKilled
	return s
}

// podStartup creates bound pods, one after the other, and waits until a watch of the API shows each Running. The first one, which finds
// cold caches, is not measured.
func podStartup(pods int, peer string) scenario {
	return scenario{
		name: "pod start", object: "startup", nodes: 1, objects: 1 + pods, single: true, warmUp: 1, rounds: pods, write: launchPod,
		lines: []line{{measure{Text: "bound pod made → Running in the API", Unit: results.Time, Peer: peer}, tookTime}},
	}
}
