package reports

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// ownAddresses are the addresses that a node may report. kube-apiserver calls a kubelet by the Hostname, and the gateway
// leads that name to the node: so it is the node's own name, and no other name leads elsewhere. A node that does not
// report it would be called by an address of its choice, past the tunnel.
func ownAddresses(node string, reported []corev1.NodeAddress) []corev1.NodeAddress {
	own := slices.DeleteFunc(slices.Clone(reported), func(a corev1.NodeAddress) bool {
		return a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP
	})
	return append(own, corev1.NodeAddress{Type: corev1.NodeHostName, Address: node})
}
