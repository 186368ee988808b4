// Package csrs approves the certificate that a gateway's kubelet shows those who call it, and denies what a gateway must not
// have. It decides on requests for the signer kubernetes.io/kubelet-serving that a gateway's own Node made
// (system:node:NAME), and leaves all others to others. Signing is Kubernetes' own.
//
// A certificate is only ever for names that lead to the very node and that the cloud gave it: its name, its address in the
// tunnel, and the host of gateway.direct, which all share. IP addresses that a gateway reports of itself are its own word,
// and count only within networks that the operator names (record 0016).
//
// Approving is the work of the node's owner; a second one finds it done. Each node has a budget, so that no gateway fills the
// cluster with certificates: what exceeds it waits.
package csrs
