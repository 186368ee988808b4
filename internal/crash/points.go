package crash

// Points returns every point there is, by the process that passes it, in the order of the way down and then up.
// The fault suite kills a process at each of them; a point that is missing here, or that no process passes, fails it.
func Points() map[string][]string {
	return map[string][]string{
		"cloudcore": {
			// publish: the stream gets what a node should have
			"publish.decided", "publish.stored", "publish.noted",
			// purge: a tombstone that the node has acked leaves the stream
			"purge.decided", "purge.done",
			// takeover: a new owner reads what the stream holds
			"takeover.begun", "takeover.read", "takeover.asked",
			// attach, the cloud's side
			"attach.asked", "attach.paged", "attach.forgotten", "attach.ready",
			// a piece of a large object
			"piece.read",
			// a part of a large report, and the report when all are there
			"part.stored", "part.joined", "part.settled",
			// a report on its way into Kubernetes
			"report.taken", "report.applied",
		},
		"edgecore": {
			// attach, the node's side
			"attach.answered", "attach.replaced",
			// deliver
			"deliver.pulled", "deliver.saved", "deliver.acked",
			// fetch: a large object comes in pieces
			"piece.fetched", "piece.last", "piece.saved",
			// save: the store's commit
			"save.begun", "save.sent", "save.batched", "save.synced",
			// ack: the cursor goes to the cloud
			"ack.beaten",
			// pump: reports leave the outbox
			"pump.stored", "pump.taken", "pump.sent", "pump.acked", "pump.removed",
			// a large report goes in parts before it
			"part.sent", "part.last",
		},
		// A gateway's identity, before there is anything to deliver and once in a key's life: internal/enrol has its own test.
		"enrolment": {
			// enrol: the key is made, the CA found, the cloud has answered, the CAs are written, then the record
			"enrol.key", "enrol.pinned", "enrol.answered", "enrol.trusted", "enrol.recorded",
			// renew: another key is made, the cloud has answered, the old key was put away
			"renew.key", "renew.answered", "enrol.kept",
		},
	}
}
