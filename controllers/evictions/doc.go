// Package evictions deletes pods of protected namespaces that are bound to gateways.
//
// Such a pod is never published to its gateway (package desired), so no kubelet would ever end it: it is deleted
// without a grace period. A pod is bound there despite the admission policy of frond init and the affinity of its
// workload, for instance in a cluster where neither is installed. Only the owner of the gateway deletes; two owners at
// a time are harmless. A pod that has ended is kept. Evictions from one gateway are limited to a burst of five and then one each 30 s.
package evictions
