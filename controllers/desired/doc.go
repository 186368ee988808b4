// Package desired publishes what each edge node should have: it compares the objects that Kubernetes holds with what
// the hub's stream holds for the node, and publishes the difference.
//
// want(node) is its pods, all that these reference by any path, its own Node, CSINode, VolumeAttachments, ResourceSlices and
// PodCertificateRequests, and the objects that every node gets (services, endpoint slices, runtime classes, CSI drivers), the RBAC of its service accounts, and
// the scopes that it was granted (Config.Scopes), each with a marker that is published only while all of it is. A graph of "who needs what"
// follows the informers' events, so a change costs what it touches, never a scan over pods or nodes. An edge node is
// one whose Node carries identity.EdgeLabel, or one that has proved itself to the cloud (Engine.AdmitNode).
//
// Guarantees: the last state of each wanted object is published at least once, changes in between may be skipped; per
// node and object in order; what is no longer wanted ends as a tombstone with the UID that was published. A delivery
// costs no request to the apiserver. Several engines may serve one node at a time, as each publish names the message it
// replaces; one that was stopped between decision and send changes nothing (Config.TombstoneAge), and one whose cache has not heard
// of what the stream holds waits until it has. A tombstone is only
// published from a complete view (all informers synced), and neither while the Node object is missing for less than
// Config.Grace nor while Config.Guard holds it back.
//
// Nothing of a protected namespace (Config.Protected) is published, whatever refers to it, and what was published of it is taken back
// at once, past Config.Guard.
//
// Kinds that not every Kubernetes serves (optionalkinds.go) are followed while Config.Probe says that they are; of one that is not
// followed nothing is decided.
//
// The package is long for a room: kinds.go, referencecollector.go and rbac.go are tables of what Kubernetes objects name, and the graph, the
// scopes and the publishing would share their locks if they were apart.
//
// It does not deliver: package streams does, and says through Engine.RecordAck what a node has on disk.
package desired
