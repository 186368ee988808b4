// Package csrs approves the serving certificates of the gateways' kubelets, and denies what a gateway must not have. It
// decides on requests for the signer kubernetes.io/kubelet-serving that a gateway's own Node made (system:node:NAME),
// and ignores all others. Signing is done by Kubernetes.
//
// A certificate is only ever for names that lead to the very node and that the cloud assigned to it: its name, its
// address in the tunnel, and the host of gateway.direct, which all nodes share. IP addresses that a gateway reports of
// itself are unverified, and count only within networks that the operator names (record 0016).
//
// The node's owner approves; a second owner finds it done. Each node has a budget, so that no gateway fills the cluster
// with certificates: requests beyond it wait.
package csrs
