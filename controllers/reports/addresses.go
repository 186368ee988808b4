package reports

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

// NodeAddressing configures what the cloud adds to the addresses that a node reports. The zero value adds the node's names.
type NodeAddressing struct {
	// MetricsHost is the host where metrics-server finds the metrics of all edge nodes; "" sets no address for it.
	MetricsHost string
	// DirectHost is the host where the cloudcores serve Port for every edge node; "" if kube-apiserver uses a proxy.
	DirectHost string
	// Port returns a node's port at DirectHost. It must not block.
	Port func(node string) (port uint16, has bool)
}

// mergeAddresses returns the addresses of a Node: its own IP addresses as it reports them, and those that the cloud
// adds. kube-apiserver calls a kubelet by the tunnel address or by the Hostname, and the gateway routes both to the
// node. They must therefore be the node's own, and no other name may lead elsewhere. A node that does not report them
// would be called by an address of its choice, bypassing the tunnel.
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
		corev1.NodeAddress{Type: names.AddressTunnel, Address: wire.TunnelAddress(node).String()})
	if w.MetricsHost != "" {
		own = append(own, corev1.NodeAddress{Type: names.AddressMetrics, Address: w.MetricsHost})
	}
	return own
}

// directAddresses returns the addresses of a node that is called at DirectHost, whatever type of address is preferred.
// A node without a port there has no address: no other would work, and its own may belong to another host.
func (w NodeAddressing) directAddresses(node string, own []corev1.NodeAddress) []corev1.NodeAddress {
	if _, has := w.Port(node); !has {
		return nil
	}
	host := corev1.NodeAddress{Type: corev1.NodeHostName, Address: w.DirectHost}
	if _, err := netip.ParseAddr(w.DirectHost); err != nil {
		return []corev1.NodeAddress{host} // most callers would prefer an IP address if there was one
	}
	first := corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: w.DirectHost}
	return slices.Concat([]corev1.NodeAddress{first}, slices.DeleteFunc(own, func(a corev1.NodeAddress) bool {
		return a == first || a.Type == corev1.NodeExternalIP
	}), []corev1.NodeAddress{host})
}

// daemonEndpoints returns the endpoints of a node's daemons.
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

// mergeAnnotations returns the annotations of a Node, with those that the cloud sets.
func (w NodeAddressing) mergeAnnotations(node string, reported map[string]string) map[string]string {
	path := "/nodes/" + node + "/kubelet/metrics/resource"
	if w.MetricsHost != "" {
		return overlayKeys(reported, map[string]string{names.AnnotationMetricsPath: path}, []string{names.AnnotationMetricsPath})
	}
	if reported[names.AnnotationMetricsPath] == path { // left from when a host was configured
		reported = maps.Clone(reported)
		delete(reported, names.AnnotationMetricsPath)
	}
	return reported
}
