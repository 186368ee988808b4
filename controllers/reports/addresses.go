package reports

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
)

// Ways are what the cloud adds to the addresses that a node reports. The zero value adds the node's names.
type Ways struct {
	// MetricsHost is where metrics-server finds the metrics of all edge nodes; "" tells it nothing.
	MetricsHost string
}

// addresses are those of a Node: its own IP addresses as it reports them, and what the cloud says. kube-apiserver calls a
// kubelet by the tunnel address or by the Hostname, and the gateway leads both to the node: so they are the node's own, and
// no other name leads elsewhere. A node that does not report them would be called by an address of its choice, past the
// tunnel.
func (w Ways) addresses(node string, reported []corev1.NodeAddress) []corev1.NodeAddress {
	own := slices.DeleteFunc(slices.Clone(reported), func(a corev1.NodeAddress) bool {
		return a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP
	})
	own = append(own,
		corev1.NodeAddress{Type: corev1.NodeHostName, Address: node},
		corev1.NodeAddress{Type: wire.AddressTunnel, Address: wire.TunnelAddress(node).String()})
	if w.MetricsHost != "" {
		own = append(own, corev1.NodeAddress{Type: wire.AddressMetrics, Address: w.MetricsHost})
	}
	return own
}

// annotations returns those of a Node with what the cloud says of it.
func (w Ways) annotations(node string, reported map[string]string) map[string]string {
	path := "/nodes/" + node + "/kubelet/metrics/resource"
	if w.MetricsHost != "" {
		return overlay(reported, map[string]string{wire.MetricsPathAnnotation: path}, []string{wire.MetricsPathAnnotation})
	}
	if reported[wire.MetricsPathAnnotation] == path { // from when there was a host
		reported = maps.Clone(reported)
		delete(reported, wire.MetricsPathAnnotation)
	}
	return reported
}
