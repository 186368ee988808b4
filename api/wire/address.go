package wire

import (
	"crypto/sha256"
	"net/netip"
)

// The types of the addresses that the cloud adds to those of an edge Node. Who calls nodes is told to prefer one of them.
const (
	// AddressTunnel is the type of TunnelAddress, for kube-apiserver.
	AddressTunnel = "frond.io/tunnel"
	// AddressMetrics is the type of the host that serves a node's metrics, for metrics-server.
	AddressMetrics = "frond.io/metrics"
)

// MetricsPathAnnotation tells metrics-server where at that host; the name is metrics-server's.
const MetricsPathAnnotation = "metrics.k8s.io/resource-metrics-path"

// tunnelPrefix is fd66:726f:6e64::/48: "frond", in the range that RFC 4193 leaves to everybody.
var tunnelPrefix = [...]byte{0xfd, 'f', 'r', 'o', 'n', 'd'} //nolint:gochecknoglobals // a constant that Go has no word for

// TunnelAddress is an address that means a node and nothing else: no two nodes share it, as gateways may share their own, no
// network routes it, and nobody has to give it out. Only a gateway's tunnel leads there. It is made of the name alone, 80
// bits of its SHA-256, so that a node knows its own before it knows the cloud; the kubelet's certificate holds it.
func TunnelAddress(node string) netip.Addr {
	var a [16]byte
	n := copy(a[:], tunnelPrefix[:])
	sum := sha256.Sum256([]byte(node))
	copy(a[n:], sum[:])
	return netip.AddrFrom16(a)
}

// IsTunnelAddress tells whether an address can only be a node's TunnelAddress.
func IsTunnelAddress(a netip.Addr) bool {
	b := a.As16()
	return [len(tunnelPrefix)]byte(b[:len(tunnelPrefix)]) == tunnelPrefix
}
