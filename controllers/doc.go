// Package controllers contains cloudcore's controllers, one folder each, and what they share: ProcessQueue, PriorityQueue, Follow,
// AddIndexers, Ownership. Peers never import each other; package cloud assembles them. What peers decide by, and that writes nothing, is none: references,
// podcache, groups/assignment, groups/membership, groups/window. Each resource has one writer:
//
//	what                                              writer
//	stream DESIRED: messages and purges               desired.Engine of the node's owner
//	pod status, end of a pod, mirror pods             reports.Applier, as the node
//	Node: creation, with the labels of a gateway      reports.Applier, after a dry run as the node
//	Node: status (but for three conditions)           reports.Applier, as the node
//	pods of protected namespaces: eviction            evictions, of the node's owner, as the node
//	Node: the conditions of its link and progress     nodes, of the node's owner
//	Events of a Node's link and progress              nodes, of the node's owner
//	Node: the labels of a gateway (set, not removed)  nodes, of the node's owner
//	Node: condition and annotations of held deletions holds, of the node's owner
//	ConfigMap frond-node-ports                        ports, of the owner of the node that gets one
//	pods: two tolerations and their annotation        autonomy, of the node's owner
//	Node: label and zone of its NodeGroup             groups, of the node's owner
//	NodeGroup: finalizer, status; its Events          groups, of the replica that the group's name hashes to
//	pods that their NodeGroup left: eviction          groups, of the replica that the group's name hashes to
//	ImagePrePullJob: status, finalizer; its NodeTasks jobs, of the replica that the job's name hashes to
//	NodeTask: status                                  jobs/taskreports, of any replica
//	Rule: status; its Events                          rules, of the replica that the rule's name hashes to
//	consumers of rules in MESSAGES-0                  rules, of the replica that the rule's name hashes to
//	CertificateSigningRequests of nodes: approval     csrs, of the node's owner
//	registry: what nodes want and were granted        scopes, of any replica, by compare and set
//	Leases in kube-node-lease of edge nodes           nodes, of the node's owner
//	NodeIdentities; uses of tokens                    cloud/identity, of any replica; frond node revoke
//	Device: who may drive it; DeviceStatus: who holds deviceclaim, of the holder's owner
//	Events of nodes                                   reports.Applier, as the node
//
// "Owner" is the one live replica that a node hashes to. Two owners at a time, as at a takeover, are harmless: publishes
// name the message they replace, reports carry the version they were made from, and heartbeats are valid whichever replica receives them.
package controllers
