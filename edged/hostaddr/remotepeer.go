package hostaddr

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// IsRemotePeer reports whether a peer is on a network outside of the machine, by the kernel's route to it: through a
// network card, or through another interface that holds a default route. If one interface may lead to containers and to a
// network alike, such as a bridge with a network card, the peer counts as local.
func IsRemotePeer(peer netip.Addr) (bool, error) {
	zone := peer.Zone()
	peer = peer.Unmap().WithZone("")
	if !peer.IsValid() || peer.IsLoopback() {
		return false, nil
	}
	var link netlink.Link
	var err error
	if zone != "" {
		if owned, err := Owned(peer); err != nil || owned {
			return false, err
		}
		link, err = netlink.LinkByName(zone)
	} else {
		link, err = linkToPeer(peer)
	}
	if err != nil || link == nil {
		return false, err
	}
	if link.Attrs().Flags&net.FlagLoopback != 0 {
		return false, nil
	}
	return isExternalLink(link.Type(), func() (bool, error) { return hasDefaultRoute(link.Attrs().Index) })
}

// linkToPeer returns the interface through which packets to a peer leave; nil if it is the machine itself.
func linkToPeer(peer netip.Addr) (netlink.Link, error) {
	routes, err := netlink.RouteGet(peer.AsSlice())
	if err != nil {
		return nil, fmt.Errorf("find the route to %s: %w", peer, err)
	}
	if len(routes) == 0 || routes[0].Type == unix.RTN_LOCAL || routes[0].LinkIndex == 0 {
		return nil, nil
	}
	link, err := netlink.LinkByIndex(routes[0].LinkIndex)
	if err != nil {
		return nil, fmt.Errorf("find the interface to %s: %w", peer, err)
	}
	return link, nil
}

// isExternalLink classifies an interface by its kind, as the kernel names it.
func isExternalLink(kind string, holdsDefault func() (bool, error)) (bool, error) {
	switch kind {
	case "device": // a network card: the kernel reports no kind for it
		return true, nil
	case "bridge", "openvswitch", "macvlan", "ipvlan": // used for containers, even if a network card is part of it
		return false, nil
	}
	return holdsDefault()
}

func hasDefaultRoute(link int) (bool, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return false, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones > 0 {
				continue
			}
		}
		if r.LinkIndex == link {
			return true, nil
		}
		for _, hop := range r.MultiPath {
			if hop.LinkIndex == link {
				return true, nil
			}
		}
	}
	return false, nil
}
