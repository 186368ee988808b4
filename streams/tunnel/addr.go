package tunnel

import (
	"net"
	"net/netip"
	"strconv"

	"go.uber.org/zap"
)

// Addr is one end of a stream.
type Addr struct {
	Node string // "" at the Dialer's end
	// Address is an address that the node reaches, such as a pod's; the zero value means that Port is the node's own.
	Address netip.Addr
	Port    uint16
}

// Network returns "frond-tunnel".
func (Addr) Network() string { return "frond-tunnel" }

// String returns "node:port", "node/address:port", or "cloud" for the Dialer's end.
func (a Addr) String() string {
	if a.Node == "" {
		return "cloud"
	}
	if a.Address.IsValid() {
		return a.Node + "/" + a.addrPort().String()
	}
	return net.JoinHostPort(a.Node, strconv.Itoa(int(a.Port)))
}

func (a Addr) addrPort() netip.AddrPort { return netip.AddrPortFrom(a.Address, a.Port) }

// logFields are the fields that identify a target in logs.
func (a Addr) logFields() []zap.Field {
	fields := []zap.Field{zap.String("node", a.Node), zap.Uint16("port", a.Port)}
	if a.Address.IsValid() {
		fields = append(fields, zap.Stringer("address", a.Address))
	}
	return fields
}
