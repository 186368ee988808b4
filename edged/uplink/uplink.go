// Package uplink dials the hub when the gateway's own network changes, whatever its pause between two dials.
//
// After a long cut that pause decides when a gateway comes back: up to 15 s. But if the cut was of the gateway's own network (a cable, a
// modem, DHCP), the kernel tells when it is over. The changes of containers' networks do not count.
package uplink

import (
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// describeUplinks returns a text that differs when the ways to other networks differ, "" if there is none: for each interface with a
// carrier that is a network card or holds a default route, its addresses and gateways.
func describeUplinks(h *netlink.Handle) (string, error) {
	links, err := h.LinkList()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	routes, err := h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return "", fmt.Errorf("list routes: %w", err)
	}
	var all []string
	for _, link := range links {
		gateways := gatewaysOf(link.Attrs().Index, routes)
		if !isUplink(link, len(gateways) > 0) {
			continue
		}
		addresses, err := h.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return "", fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
		}
		if line := describeUplink(link.Attrs().Name, addresses, gateways); line != "" {
			all = append(all, line)
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; "), nil
}

// isUplink reports whether an interface can lead to other networks now.
func isUplink(link netlink.Link, hasDefault bool) bool {
	attrs := link.Attrs()
	if attrs.Flags&net.FlagLoopback != 0 || attrs.Flags&net.FlagUp == 0 || attrs.RawFlags&unix.IFF_RUNNING == 0 {
		return false
	}
	return hasDefault || link.Type() == "device" // a network card: the kernel reports no kind for it
}

// gatewaysOf returns the gateways of the default routes through an interface; a default route without a gateway has an empty one.
func gatewaysOf(index int, routes []netlink.Route) (found []string) {
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		if r.LinkIndex == index {
			found = append(found, gatewayText(r.Gw))
		}
		for _, hop := range r.MultiPath {
			if hop.LinkIndex == index {
				found = append(found, gatewayText(hop.Gw))
			}
		}
	}
	slices.Sort(found)
	return found
}

func gatewayText(ip net.IP) string {
	if ip == nil {
		return ""
	}
	return ip.String()
}

// describeUplink returns "" for an interface without an address that others can answer to.
func describeUplink(name string, addresses []netlink.Addr, gateways []string) string {
	var own []string
	for _, a := range addresses {
		if a.IP.IsGlobalUnicast() {
			own = append(own, a.IP.String())
		}
	}
	if len(own) == 0 {
		return ""
	}
	slices.Sort(own)
	return fmt.Sprintf("%s %s via %s", name, strings.Join(own, ","), strings.Join(gateways, ","))
}
