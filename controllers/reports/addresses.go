package reports

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
)

// NodeAddressing are what the cloud adds to the addresses that a node reports. The zero value adds the node's names.
type NodeAddressing struct {
	// MetricsHost is where metrics-server finds the metrics of all edge nodes; "" tells it nothing.
	MetricsHost string
	// DirectHost is where Port is served for every edge node, by the cloudcores; "" if kube-apiserver knows a proxy.
	DirectHost string
	// Port is the one that a node has there. It must not block.
	Port func(node string) (port uint16, has bool)
}

// mergeAddresses are those of a Node: its own IP addresses as it reports them, and what the cloud says. kube-apiserver calls a
// kubelet by the tunnel address or by the Hostname, and the gateway leads both to the node: so they are the node's own, and
// no other name leads elsewhere. A node that does not report them would be called by an address of its choice, past the
// tunnel.
func (w NodeAddressing) mergeAddresses(node string, reported []corev1.NodeAddress) []corev1.NodeAddress {
	own := slices.DeleteFunc(slices.Clone(reported), func(a corev1.NodeAddress) bool {
		return a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP
	})
	if w.DirectHost != "" {
		own = w.directAddresses(node, own)
	} else {
		own = append(own, corev1.NodeAddress{Type: corev1.NodeHostName, Address: node})
	}
	own = append(own,
		corev1.NodeAddress{Type: wire.AddressTunnel, Address: wire.TunnelAddress(node).String()})
	if w.MetricsHost != "" {
		own = append(own, corev1.NodeAddress{Type: wire.AddressMetrics, Address: w.MetricsHost})
	}
	return own
}

// directAddresses are the addresses of a node that is called at DirectHost, whatever type of address is preferred. Before it has a port
// there, it has none: no other would do, and its own may be anybody's.
func (w NodeAddressing) directAddresses(node string, own []corev1.NodeAddress) []corev1.NodeAddress {
	if _, has := w.Port(node); !has {
		return nil
	}
	host := corev1.NodeAddress{Type: corev1.NodeHostName, Address: w.DirectHost}
	if _, err := netip.ParseAddr(w.DirectHost); err != nil {
		return []corev1.NodeAddress{host} // with an IP address beside it, that would be preferred by most
	}
	first := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: w.DirectHost}
	return slices.Concat([]corev1.NodeAddress{first}, slices.DeleteFunc(own, func(a corev1.NodeAddress) bool {
		return a == first || a.Type == corev1.NodeExternalIP
	}), []corev1.NodeAddress{host})
}

// daemonEndpoints are where the daemons of a node are reached.
func (w NodeAddressing) daemonEndpoints(node string, reported corev1.NodeDaemonEndpoints) corev1.NodeDaemonEndpoints {
	if w.DirectHost == "" {
		return reported
	}
	reported.KubeletEndpoint.Port = 0 // unknown; then it has no address either
	if port, has := w.Port(node); has {
		reported.KubeletEndpoint.Port = int32(port)
	}
	return reported
}

// mergeAnnotations returns those of a Node with what the cloud says of it.
func (w NodeAddressing) mergeAnnotations(node string, reported map[string]string) map[string]string {
	path := "/nodes/" + node + "/kubelet/metrics/resource"
	if w.MetricsHost != "" {
		return overlayKeys(reported, map[string]string{wire.MetricsPathAnnotation: path}, []string{wire.MetricsPathAnnotation})
	}
	if reported[wire.MetricsPathAnnotation] == path { // from when there was a host
		reported = maps.Clone(reported)
		delete(reported, wire.MetricsPathAnnotation)
	}
	return reported
}
