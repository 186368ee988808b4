// Package hostaddr adds addresses to a machine, so that a program can listen on them and containers can reach it there.
//
// The addresses are added to the loopback interface, each alone in its subnet; no kernel module is needed. They are not
// announced outside of the machine, but Linux answers for them on every interface: a neighbour with a route to them reaches
// them. A server on such an address therefore calls IsRemotePeer for each peer. The addresses belong to the network
// namespace of the process, need CAP_NET_ADMIN, and stay until they are removed or the machine reboots: a restart of the
// program must not cut off its clients.
package hostaddr

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const loopback = "lo"

// Claim adds an address to this machine. An address that it already has, on any interface, is left unchanged.
func Claim(_ context.Context, address netip.Addr) error {
	owned, err := Owned(address)
	if err != nil || owned {
		return err
	}
	link, err := netlink.LinkByName(loopback)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", loopback, err)
	}
	if err := netlink.AddrAdd(link, hostAddress(address)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add %s to %s: %w", address, loopback, err)
	}
	return nil
}

// Release removes an address that Claim added.
func Release(_ context.Context, address netip.Addr) error {
	link, err := netlink.LinkByName(loopback)
	if err != nil {
		return fmt.Errorf("find interface %s: %w", loopback, err)
	}
	if err := netlink.AddrDel(link, hostAddress(address)); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
		return fmt.Errorf("remove %s from %s: %w", address, loopback, err)
	}
	return nil
}

// Owned reports whether this machine has an address.
func Owned(address netip.Addr) (bool, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return false, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == address.Unmap() {
				return true, nil
			}
		}
	}
	return false, nil
}

func hostAddress(address netip.Addr) *netlink.Addr {
	ip := address.Unmap()
	return &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}, Scope: unix.RT_SCOPE_HOST}
}
