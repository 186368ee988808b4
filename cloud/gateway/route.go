package gateway

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
)

// Addresses looks up an IP address in what Kubernetes knows. Calls do not wait for Kubernetes; an error says that the
// answer is not available now.
type Addresses interface {
	// Claims returns the claims of nodes to an address.
	Claims(ctx context.Context, address netip.Addr) ([]Claim, error)
	// Endpoints returns the TCP endpoints behind a port of a ClusterIP, with the target port of each; service is "" if no Service has
	// that address.
	Endpoints(ctx context.Context, to netip.AddrPort) (service string, endpoints []Endpoint, err error)
}

// ClaimKind is the reason why an address belongs to a node.
type ClaimKind string

// The kinds of claims. Kubernetes allocates ranges; the addresses of pods and hosts are reported by their node, and may be false.
const (
	ClaimRange ClaimKind = "podCIDR" // the Node's podCIDR contains the address
	ClaimPod   ClaimKind = "pod"     // a pod that runs on the node, with a network of its own, reports the address
	ClaimHost  ClaimKind = "host"    // the Node's status names the address
)

// Claim is the claim of a node to an address.
type Claim struct {
	Kind ClaimKind
	Node string
	// Edge says that the node is reached through a tunnel.
	Edge bool
}

// Endpoint is an endpoint of a Service.
type Endpoint struct {
	// Node is the edge node that it is on; "" if it is not on an edge node.
	Node    string
	Address netip.AddrPort
	Ready   bool
}

// routeByClaims returns the edge node through which an address is reached; "" means that it is dialled directly. An
// error is a *refusal. trusted says that the operator accepts the gateways' own reports for this address, as it is in
// one of gateway.trustedNetworks.
//
// A gateway may be stolen, and report any address. Its report alone therefore changes no route: it can neither attract
// the address of another node or host nor take it away from its holder.
func routeByClaims(address netip.Addr, claims []Claim, trusted bool) (node string, err error) {
	if len(claimingNodes(claims, ClaimHost, false)) > 0 {
		return "", nil // a host of the cloud
	}
	edgeRanges, cloudRanges := claimingNodes(claims, ClaimRange, true), claimingNodes(claims, ClaimRange, false)
	edgePods, cloudPods := claimingNodes(claims, ClaimPod, true), claimingNodes(claims, ClaimPod, false)
	switch {
	case len(edgeRanges) > 0 && len(edgeRanges)+len(cloudRanges) > 1:
		return "", addressConflict(address, "the podCIDRs of Nodes %s overlap; give each Node a podCIDR of its own", slices.Concat(edgeRanges, cloudRanges))
	case len(edgeRanges) == 1 && len(cloudPods) > 0 && slices.Contains(edgePods, edgeRanges[0]):
		return "", addressConflict(address, "pods of Nodes %s have it; give pods addresses of their own Node's podCIDR alone", slices.Concat(edgeRanges, cloudPods))
	case len(cloudRanges) > 0 || len(cloudPods) > 0:
		return "", nil
	case len(edgeRanges) == 1:
		return edgeRanges[0], nil // whatever others report; the node knows which of its pods has the address
	case !trusted:
		return "", nil
	}
	own := uniqueNames(edgePods, claimingNodes(claims, ClaimHost, true))
	switch len(own) {
	case 0:
		return "", nil
	case 1:
		return own[0], nil
	}
	return "", addressConflict(address, "Nodes %s report it; give gateways podCIDRs and host addresses that do not overlap", own)
}

// claimingNodes returns the names of the nodes with a claim of one kind, each once, in order.
func claimingNodes(claims []Claim, kind ClaimKind, edge bool) []string {
	var nodes []string
	for _, c := range claims {
		if c.Kind == kind && c.Edge == edge {
			nodes = append(nodes, c.Node)
		}
	}
	return uniqueNames(nodes)
}

// uniqueNames returns each name once, in order.
func uniqueNames(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}

// addressConflict returns the refusal for an address that more than one node has.
func addressConflict(address netip.Addr, why string, nodes []string) *refusal {
	return &refusal{label: refusedConflict, text: fmt.Sprintf("address %s is not unique: "+why, address, listNames(nodes))}
}

// listNames formats the first few names.
func listNames(nodes []string) string {
	const shown = 4
	if len(nodes) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(nodes[:shown], ", "), len(nodes)-shown)
	}
	return strings.Join(nodes, ", ")
}

// routeByEndpoints returns the endpoints of a Service that are reached through tunnels: the first few that are ready
// and on a connected node. None means that the Service is dialled directly. An error is a *refusal. Kubernetes itself
// states the node of an endpoint, so its address need not be unique.
func routeByEndpoints(service string, endpoints []Endpoint, connected func(node string) bool) ([]Endpoint, error) {
	if slices.ContainsFunc(endpoints, func(e Endpoint) bool { return e.Node == "" }) {
		return nil, nil
	}
	var serving []Endpoint
	var offline []string
	for _, e := range endpoints {
		switch {
		case !e.Ready:
		case len(serving) == maxEndpointTries:
			return serving, nil
		case connected(e.Node):
			serving = append(serving, e)
		default:
			offline = append(offline, e.Node)
		}
	}
	switch {
	case len(endpoints) == 0 || len(serving) > 0:
		return serving, nil
	case len(offline) > 0:
		return nil, &refusal{label: refusedSilent, text: fmt.Sprintf("Service %s has ready endpoints only on gateways that are not connected: %s", service, listNames(uniqueNames(offline)))}
	}
	return nil, &refusal{label: refusedSilent, text: fmt.Sprintf("Service %s has no ready endpoint; all its endpoints are on gateways", service)}
}

// maxEndpointTries bounds the endpoints of a Service that are tried for one connection: a silent node costs 2.5 s, and
// webhooks have 10 s.
const maxEndpointTries = 3

// dialService opens a stream to one of the endpoints.
func (d *nodeDialer) dialService(ctx context.Context, who string, endpoints []Endpoint) (conn net.Conn, err error) {
	for _, e := range endpoints {
		if conn, err = d.dialPod(ctx, who, e.Node, e.Address); err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	return nil, err
}

// dialPod opens a stream to an address that a node can reach.
func (d *nodeDialer) dialPod(ctx context.Context, who, name string, to netip.AddrPort) (net.Conn, error) {
	node, known := d.nodes.Node(ctx, name)
	if !known {
		return nil, &refusal{label: refusedDial, text: fmt.Sprintf("node %s is deleted", name)}
	}
	return d.openStream(ctx, who, name, node, func(ctx context.Context) (net.Conn, error) { return d.tunnels.DialAddress(ctx, name, to) })
}

// dialAddress opens a connection to an IP address that is no tunnel address, through the node to which the address
// belongs. If there is none, edge is false and conn is nil.
func (d *nodeDialer) dialAddress(ctx context.Context, who string, to netip.AddrPort) (conn net.Conn, edge bool, err error) {
	service, endpoints, err := d.addresses.Endpoints(ctx, to)
	if err != nil {
		return nil, false, unknownAddress(to, err)
	}
	if service != "" {
		rand.Shuffle(len(endpoints), func(i, j int) { endpoints[i], endpoints[j] = endpoints[j], endpoints[i] })
		if endpoints, err = routeByEndpoints(service, endpoints, d.connectedCheck(ctx)); err != nil || len(endpoints) == 0 {
			return nil, false, err
		}
		conn, err = d.dialService(ctx, who, endpoints)
		return conn, true, err
	}
	claims, err := d.addresses.Claims(ctx, to.Addr())
	if err != nil {
		return nil, false, unknownAddress(to, err)
	}
	node, err := routeByClaims(to.Addr(), claims, d.isTrusted(to.Addr()))
	if err != nil || node == "" {
		return nil, false, err
	}
	conn, err = d.dialPod(ctx, who, node, to)
	return conn, true, err
}

func unknownAddress(to netip.AddrPort, err error) *refusal {
	return &refusal{label: refusedSilent, text: fmt.Sprintf("whose address %s is cannot be told now: %v", to.Addr(), err)}
}

// connectedCheck returns a function that reports whether a dial of a node can succeed.
func (d *nodeDialer) connectedCheck(ctx context.Context) func(node string) bool {
	return func(name string) bool {
		node, known := d.nodes.Node(ctx, name)
		return known && !node.Offline && d.checkBlocked(name) == nil
	}
}

func (d *nodeDialer) isTrusted(address netip.Addr) bool {
	return slices.ContainsFunc(d.cfg.TrustedNetworks, func(network netip.Prefix) bool { return network.Contains(address) })
}
