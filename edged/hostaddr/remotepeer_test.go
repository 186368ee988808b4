package hostaddr_test

import (
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/frond-edge/frond/edged/hostaddr"
)

// addInterface creates an interface with an address.
func addInterface(t *testing.T, link netlink.Link, address string) netlink.Link {
	t.Helper()
	if err := netlink.LinkAdd(link); err != nil {
		t.Skipf("interfaces of kind %s cannot be made here: %v", link.Type(), err)
	}
	made, err := netlink.LinkByName(link.Attrs().Name)
	if err != nil {
		t.Fatal(err)
	}
	a, err := netlink.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(made, a); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(made); err != nil {
		t.Fatal(err)
	}
	return made
}

func addVeth(t *testing.T, name, address string) netlink.Link {
	t.Helper()
	made := addInterface(t, &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}, address)
	other, err := netlink.LinkByName(name + "p")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(other); err != nil {
		t.Fatal(err)
	}
	return made
}

func TestIsRemotePeer(t *testing.T) {
	inNamespace(t)
	uplink := addVeth(t, "up0", "192.168.1.10/24")
	addVeth(t, "pod0", "10.43.0.1/24")
	addInterface(t, &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "pods0"}}, "10.42.0.1/24")
	check := func(when string, want map[string]bool) {
		t.Helper()
		for text, want := range want {
			if got, err := hostaddr.IsRemotePeer(netip.MustParseAddr(text)); err != nil || got != want {
				t.Errorf("%s: %s is outside: %v, %v; want %v", when, text, got, err, want)
			}
		}
	}
	check("without a default route", map[string]bool{"192.168.1.20": false, "10.42.0.5": false, "192.168.1.10": false})
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: uplink.Attrs().Index, Gw: net.IPv4(192, 168, 1, 1)}); err != nil {
		t.Fatal(err)
	}
	check("with an uplink", map[string]bool{
		"192.168.1.20": true, "8.8.8.8": true, "::ffff:192.168.1.20": true, // neighbours, and hosts behind a gateway
		"10.42.0.5": false, "10.43.0.5": false, // pods of a bridge, and of an interface each
		"192.168.1.10": false, "10.42.0.1": false, "127.0.0.1": false, "::1": false, "127.0.0.9": false, // the machine itself
	})
	if _, err := hostaddr.IsRemotePeer(netip.Addr{}); err != nil {
		t.Errorf("no address: %v", err)
	}
}

func TestIsExternalLink_ByKind(t *testing.T) {
	for kind, want := range map[string][2]bool{ // without and with a default route
		"device": {true, true}, "veth": {false, true}, "vlan": {false, true}, "wireguard": {false, true},
		"bridge": {false, false}, "openvswitch": {false, false}, "macvlan": {false, false}, "ipvlan": {false, false},
	} {
		for i, holds := range []bool{false, true} {
			if got, err := hostaddr.IsExternalLink(kind, func() (bool, error) { return holds, nil }); err != nil || got != want[i] {
				t.Errorf("%s with a default route %v: %v, %v", kind, holds, got, err)
			}
		}
	}
}
