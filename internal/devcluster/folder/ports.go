package folder

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
)

const (
	// PortBase and portSpan bound the ports that are tried. They lie below Linux' range for outgoing connections
	// (from 32768) and for NodePorts (from 30000), so that nothing takes a port while its component is down.
	PortBase = 20000
	portSpan = 10000
	// portBlock holds the ports of a usual cluster. Clusters that run side by side have blocks of their own, so that none takes the port of
	// another's component that is down.
	portBlock = 100
)

// PortNames lists every port that a cluster of this spec listens on, in the order of allocation.
func PortNames(s Spec) []string {
	names := []string{"etcd", "etcd-peer", "apiserver"}
	for _, h := range Names("hub", s.Hubs) {
		names = append(names, h, h+"-cluster", h+"-leaf")
	}
	for _, c := range Names("cloudcore", s.Cloudcores) {
		names = append(names, c, InspectPort(c))
	}
	for _, e := range Names("edge", s.Edges) {
		names = append(names, e, e+"-api")
		if s.Runtime == Hollow {
			names = append(names, e+"-kubelet")
			if s.Devices {
				names = append(names, e+"-mqtt")
			}
			for _, h := range Names("hub", s.Hubs) {
				names = append(names, e+"-"+h)
			}
		}
	}
	names = append(names, "egress", "scrape") // shared by all cloudcores
	if s.Direct {
		names = append(names, DirectPorts(s)...)
	}
	if !s.NoMetrics {
		names = append(names, MetricsServer)
	}
	return names
}

// MetricsServer is the name of metrics-server: of its process, its port and its files.
const MetricsServer = "metrics-server"

// InspectPort names the port on which a cloudcore serves frond status and frond sync.
func InspectPort(cloudcore string) string { return cloudcore + "-inspect" }

// DirectPorts names the ports of gateways at the cloudcores. The cloudcores assign them to gateways.
func DirectPorts(s Spec) []string { return Names("direct", max(s.Edges, minDirectPorts)) }

// minDirectPorts allows gateways to be added later: cloudcore reads its configuration only when it starts.
const minDirectPorts = 8

// ChoosePorts allocates a free port for each name without one. seed spreads clusters over the blocks of the range.
func ChoosePorts(have map[string]int, names []string, seed uint32, free func(port int) bool) (map[string]int, error) {
	ports, taken := map[string]int{}, map[int]bool{}
	for name, p := range have {
		ports[name], taken[p] = p, true
	}
	next := firstPort(have, seed, free) - PortBase
	for _, name := range names {
		if ports[name] != 0 {
			continue
		}
		for tries := 0; ; tries++ {
			if tries == portSpan {
				return nil, fmt.Errorf("choose a port for %s: none between %d and %d is free", name, PortBase, PortBase+portSpan-1)
			}
			p := PortBase + next
			next = (next + 1) % portSpan
			if !taken[p] && free(p) {
				ports[name], taken[p] = p, true
				break
			}
		}
	}
	return ports, nil
}

// firstPort returns where the search begins: at the ports that the cluster has, or at a block whose first port is free. That port is etcd's,
// which runs whenever another component is down for a while.
func firstPort(have map[string]int, seed uint32, free func(port int) bool) int {
	if len(have) > 0 {
		return slices.Min(slices.Collect(maps.Values(have)))
	}
	const blocks = portSpan / portBlock
	block := int(seed % blocks)
	for range blocks {
		if free(PortBase + block*portBlock) {
			break
		}
		block = (block + 1) % blocks
	}
	return PortBase + block*portBlock
}

// PortReservation holds the ports of a cluster that is about to start, so that no other one chooses them. The zero value holds none.
type PortReservation struct{ held map[int]net.Listener }

// Take reports whether a port of 127.0.0.1 is free or held by this reservation, and holds it from then on.
func (r *PortReservation) Take(port int) bool {
	if r.held[port] != nil {
		return true
	}
	l, err := net.Listen("tcp", Loopback(port)) //nolint:noctx // an address, not a name: nothing to wait for
	if err != nil {
		return false
	}
	if r.held == nil {
		r.held = map[int]net.Listener{}
	}
	r.held[port] = l
	return true
}

// Release frees the ports for the cluster's components.
func (r *PortReservation) Release() error {
	var errs []error
	for _, l := range r.held {
		errs = append(errs, l.Close())
	}
	r.held = nil
	return errors.Join(errs...)
}

// PortFree reports whether no process listens on a port of 127.0.0.1.
func PortFree(port int) bool {
	l, err := net.Listen("tcp", Loopback(port)) //nolint:noctx // an address, not a name: nothing to wait for
	if err != nil {
		return false
	}
	return l.Close() == nil
}

// Loopback returns the address of a port of this machine.
func Loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// Names returns kind-1 … kind-n.
func Names(kind string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = kind + "-" + strconv.Itoa(i+1)
	}
	return names
}
