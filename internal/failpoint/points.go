package failpoint

// Points returns every crash point, by the process that passes it, first on the way down and then on the way up. The fault suite kills a
// process at each of them; a point that is missing here, or that no process passes, fails it.
func Points() map[string][]string {
	return map[string][]string{
		"cloudcore": {
			// publish: the stream receives a node's desired state
			"publish.decided", "publish.stored", "publish.noted",
			// purge: a tombstone that the node has acked is purged from the stream
			"purge.decided", "purge.done",
			// takeover: a new owner reads the content of the stream
			"takeover.begun", "takeover.read", "takeover.asked",
			// attach, cloud side
			"attach.asked", "attach.paged", "attach.forgotten", "attach.ready",
			// a piece of a large object
			"piece.read",
			// a part of a large report, and the report when all parts are there
			"part.stored", "part.joined", "part.settled",
			// a report before and after it is applied to Kubernetes
			"report.taken", "report.applied",
		},
		"edgecore": {
			// attach, node side
			"attach.answered", "attach.replaced",
			// deliver: messages are pulled, saved and acked
			"deliver.pulled", "deliver.saved", "deliver.acked",
			// fetch: a large object arrives in pieces
			"piece.fetched", "piece.last", "piece.saved",
			// save: the store's commit
			"save.begun", "save.sent", "save.batched", "save.synced",
			// ack: the heartbeat carries the cursor to the cloud
			"ack.beaten",
			// pump: reports move from the outbox to the hub
			"pump.stored", "pump.taken", "pump.sent", "pump.acked", "pump.removed",
			// a large report's payload goes in parts before it
			"part.sent", "part.last",
		},
		// Samples of devices, where the gateway has a broker: test/e2e has their test.
		"edgecore with devices": {
			// append: samples are on the gateway's disk; pump: the hub has them
			"telemetry.stored", "telemetry.sent",
		},
		"cloudcore with devices": {
			// receive: all samples of a request but the last one are sent to the stream
			"telemetry.commit",
		},
		// The same of messages on custom MQTT topics.
		"edgecore with custom topics":  {"messages.stored", "messages.sent"},
		"cloudcore with custom topics": {"messages.commit"},
		// A gateway's identity, before any delivery and once in a key's lifetime: edged/enroll has its own test.
		"enrolment": {
			// enrol: the key is created, the CA found, the cloud has answered, the CAs are written, then the record
			"enrol.key", "enrol.pinned", "enrol.answered", "enrol.trusted", "enrol.recorded",
			// renew: another key is created, the cloud has answered, the old key was put away
			"renew.key", "renew.answered", "enrol.kept",
		},
	}
}
