// Package desired publishes the desired state of each edge node: it compares the objects that Kubernetes holds with what the hub's stream holds for
// the node, and publishes the difference.
//
// The desired state of a node consists of:
//   - its pods, and all objects that these reference by any path;
//   - its own Node, CSINode, VolumeAttachments, ResourceSlices and PodCertificateRequests, and its Devices with their models;
//   - the Services of its pods' namespaces;
//   - the objects that every node gets (the Service of the API, runtime classes, CSI drivers);
//   - the RBAC objects of its service accounts;
//   - the scopes that it was granted (Config.Scopes), each with a marker that is published only while the whole scope is. Those on all Services and
//     all EndpointSlices are granted to each node that does not ask for them itself (Config.ServicesByNeed).
//
// Of EndpointSlices and Endpoints a node gets its share (package topology); nothing is decided about it while its group is not known.
//
// A graph of needs follows the informers' events. The cost of a change is therefore proportional to the objects it touches; there is never a scan
// over pods or nodes. An edge node is one whose Node carries identity.EdgeLabel, or one that has authenticated to the cloud (Engine.AdmitNode).
//
// Guarantees:
//   - The last state of each wanted object is published at least once; changes in between may be skipped. An EndpointSlice that changes all the time
//     is published once a second.
//   - Messages are in order per node and object.
//   - A change waits for no work on other nodes but other changes: not for the loads and comparisons of a takeover, a resync or an audit, which in
//     turn do not wait for changes.
//   - An object that is no longer wanted ends as a tombstone with the UID that was published.
//   - A delivery makes no request to the apiserver.
//   - Several engines may serve one node at a time, as each publish names the message it replaces. An engine that was stopped between decision and
//     send changes nothing (Config.TombstoneAge). An engine whose cache is behind what the stream holds waits until it has caught up.
//   - A tombstone is only published from a complete view (all informers synced). It is not published while the Node object is missing for less than
//     Config.Grace, nor while Config.Guard holds it back.
//   - Nothing of a protected namespace (Config.Protected) is published, whatever refers to it. What was published of it is removed at once, without a
//     check by Config.Guard.
//
// Kinds that not every Kubernetes serves (kinds.OptionalTable) are synced while Config.Probe finds them served. Nothing is decided about the objects
// of a kind that is not synced, and what only such objects may refer to is not removed.
//
// The packages below this one are its parts: kinds, objectcache and kindsync read Kubernetes; graph, needs and grants say which node is to have what;
// source, topology, payload, published, decision and deletionguard say what is to be sent; dispatch says when; streamaudit checks it. This one holds
// them together: nodeTable owns the lock of what is known of the nodes, reconciler processes the queue.
//
// It does not deliver: package streams does, and reports through Engine.RecordAck what a node has on disk.
package desired
