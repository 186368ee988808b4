// Package nodehealth watches the nodes' heartbeats and readiness for what needs a repair, and requests it from the node.
//
// DuplicateDetector fences the later of two agents with one identity. InventoryAuditor makes a node whose objects differ
// from the stream's attach for a full resync. LostNodeResync and RereportQueue ask nodes to report again: those that
// Kubernetes had marked lost, and those whose reports were given up. Each keeps hints in memory only; another replica
// starts without them. Only the owner of a node acts.
package nodehealth
