// Package groups carries out NodeGroups: labels of their members, their status, and the eviction of pods from Nodes that have left.
//
// Who is in which group is the question of package membership; this package only writes the answer down. A Node's labels are written by the
// owner of the Node, all else by the replica that the group's name hashes to. Two owners at a time are harmless: each write names the
// version that it was decided from. Nothing is written where nothing differs.
//
// A pod is evicted if its node selector names a group that its Node is not in, and the group exists. It needs no memory of who has left:
// a replica that takes over finds the same pods. Before the first eviction from a Node the group and the Node are read again from the
// apiserver, and the Node no longer has the label. Evictions go through the eviction API, so PodDisruptionBudgets are kept. If more than a share of
// a group's Nodes leave at once, their pods stay until an operator confirms; a group that is deleted was deleted on purpose. Without
// an answer to who is in which group, or without the kind, nothing is written and no pod is evicted.
package groups
