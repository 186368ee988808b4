package wire

import (
	"crypto/sha256"
	"net/netip"
)

// tunnelPrefix is fd66:726f:6e64::/48: "frond", in the range that RFC 4193 leaves for local use.
var tunnelPrefix = [...]byte{0xfd, 'f', 'r', 'o', 'n', 'd'} //nolint:gochecknoglobals // a constant that Go has no word for

// TunnelAddress returns the address that identifies one node and nothing else. Gateways may share their own addresses, but no two nodes
// share this one; no network routes it, and it needs no allocation. Only a gateway's tunnel leads there. It is derived from the name
// alone, 80 bits of its SHA-256, so that a node knows its own before it reaches the cloud; the kubelet's certificate holds it.
func TunnelAddress(node string) netip.Addr {
	var a [16]byte
	n := copy(a[:], tunnelPrefix[:])
	sum := sha256.Sum256([]byte(node))
	copy(a[n:], sum[:])
	return netip.AddrFrom16(a)
}

// IsTunnelAddress reports whether an address can only be a node's TunnelAddress.
func IsTunnelAddress(a netip.Addr) bool {
	b := a.As16()
	return [len(tunnelPrefix)]byte(b[:len(tunnelPrefix)]) == tunnelPrefix
}
