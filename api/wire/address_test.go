package wire_test

import (
	"net/netip"
	"testing"

	"github.com/frond-edge/frond/api/wire"
)

func TestTunnelAddress_IsUniquePerNode(t *testing.T) {
	one, two := wire.TunnelAddress("gw-1"), wire.TunnelAddress("gw-2")
	// Certificates hold the address, so it never changes.
	if want := "fd66:726f:6e64:"; one == two || one != wire.TunnelAddress("gw-1") || one.String()[:len(want)] != want {
		t.Errorf("%s, %s", one, two)
	}
	if want := netip.MustParseAddr("fd66:726f:6e64:0:0:0:0:0"); one == want {
		t.Error("the name does not count")
	}
	for text, want := range map[string]bool{one.String(): true, two.String(): true, "fd66:726f:6e63::1": false, "10.0.0.1": false, "::ffff:102:114": false} {
		if got := wire.IsTunnelAddress(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %t", text, got)
		}
	}
	// The conditions that kube-apiserver requires of an address before it calls a node for nodes/proxy.
	if !one.IsGlobalUnicast() {
		t.Errorf("%s is not one that kube-apiserver calls", one)
	}
}
