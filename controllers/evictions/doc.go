// Package evictions deletes pods of protected namespaces that are bound to gateways.
//
// Such a pod is never given to its gateway (package desired), so no kubelet would ever end it: it is deleted without a grace period.
// A pod gets there past the admission policy of frond init and the affinity of its workload, for instance in a cluster where
// neither is installed. Only the owner of the gateway acts; two owners at a time do no harm. A pod that has ended stays. Evictions
// from one gateway are limited to a burst of five and then one each 30 s.
package evictions
