package addressindex

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/frond-edge/frond/cloud/gateway"
	"github.com/frond-edge/frond/controllers/podcache"
)

// Addresses is a gateway.Addresses: it answers from the objects that are in memory for the nodes anyway.
type Addresses struct {
	objects cache.Cache
	// nodes and pods are the cache's own stores: their objects must not be changed. They are not copied, as a Service
	// may have an endpoint on each node. pods has the index podsByAddress. An index of the cache's own would hold each
	// address twice, for all namespaces and for the pod's: 660 bytes a pod instead of 300.
	nodes, pods toolscache.Indexer
}

// lookupTimeout bounds a read of the cache, which blocks only until it has been filled.
const lookupTimeout = 2 * time.Second

// The indices of Addresses.
const (
	nodesByPodCIDR      = "podCIDR"
	nodesByHostAddress  = "hostAddress"
	podsByAddress       = "podAddress"
	servicesByClusterIP = "clusterIP"
	slicesByService     = "serviceName"
)

// NewAddresses adds the indices to a cache, before it starts.
func NewAddresses(ctx context.Context, objects cache.Cache) (Addresses, error) {
	for _, index := range []struct {
		object client.Object
		name   string
		keys   client.IndexerFunc
	}{
		{&corev1.Node{}, nodesByPodCIDR, func(o client.Object) []string { return podCIDRs(o.(*corev1.Node)) }},
		{&corev1.Node{}, nodesByHostAddress, func(o client.Object) []string { return hostAddresses(o.(*corev1.Node)) }},
		{&corev1.Service{}, servicesByClusterIP, func(o client.Object) []string { return addressTexts(o.(*corev1.Service).Spec.ClusterIPs) }},
		{&discoveryv1.EndpointSlice{}, slicesByService, func(o client.Object) []string { return []string{o.GetLabels()[discoveryv1.LabelServiceName]} }},
	} {
		if err := objects.IndexField(ctx, index.object, index.name, index.keys); err != nil {
			return Addresses{}, fmt.Errorf("index of %T by %s: %w", index.object, index.name, err)
		}
	}
	nodes, err := addIndexers(ctx, objects, &corev1.Node{}, nil)
	if err != nil {
		return Addresses{}, err
	}
	pods, err := addIndexers(ctx, objects, &corev1.Pod{}, toolscache.Indexers{
		podsByAddress: func(o any) ([]string, error) { return podAddresses(o), nil },
	})
	return Addresses{objects: objects, nodes: nodes, pods: pods}, err
}

// addIndexers adds indices to the cache's store of a kind, and returns the store.
func addIndexers(ctx context.Context, objects cache.Cache, kind client.Object, by toolscache.Indexers) (toolscache.Indexer, error) {
	found, err := objects.GetInformer(ctx, kind, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, fmt.Errorf("index of %T: %w", kind, err)
	}
	informer, ok := found.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("index of %T: informer is a %T", kind, found)
	}
	if err := informer.AddIndexers(by); err != nil {
		return nil, fmt.Errorf("index of %T: %w", kind, err)
	}
	return informer.GetIndexer(), nil
}

// onEdge reports whether a node is an edge node; known is false without its Node.
func (a Addresses) onEdge(name string) (edge, known bool) {
	node, known, err := a.nodes.GetByKey(name)
	if err != nil || !known {
		return false, false
	}
	return gateway.NodeOf(node.(*corev1.Node)).Edge, true
}

// podCIDRs returns the ranges that Kubernetes has allocated to a Node. No gateway can set them (refuseNodeWrite).
func podCIDRs(node *corev1.Node) []string {
	var ranges []string
	for _, text := range node.Spec.PodCIDRs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			ranges = append(ranges, prefix.Masked().String())
		}
	}
	return ranges
}

func hostAddresses(node *corev1.Node) []string {
	var texts []string
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP {
			texts = append(texts, a.Address)
		}
	}
	return addressTexts(texts)
}

// podAddresses returns the present addresses of a pod with a network of its own.
func podAddresses(cached any) []string {
	pod, ok := podcache.Of(cached)
	if !ok || pod.HostNetwork() || pod.Node() == "" || pod.Ended() {
		return nil
	}
	return addressTexts(pod.Addresses())
}

// addressTexts formats each address as netip does, and leaves out invalid ones, such as the ClusterIP "None".
func addressTexts(texts []string) []string {
	var addresses []string
	for _, text := range texts {
		if address, err := netip.ParseAddr(text); err == nil {
			addresses = append(addresses, address.Unmap().String())
		}
	}
	return addresses
}

// Claims implements gateway.Addresses.
func (a Addresses) Claims(ctx context.Context, address netip.Addr) ([]gateway.Claim, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var claims []gateway.Claim
	for bits := range address.BitLen() + 1 {
		prefix, err := address.Prefix(bits)
		if err != nil {
			return nil, err
		}
		if err := a.nodeClaims(ctx, &claims, gateway.ClaimRange, nodesByPodCIDR, prefix.String()); err != nil {
			return nil, err
		}
	}
	if err := a.nodeClaims(ctx, &claims, gateway.ClaimHost, nodesByHostAddress, address.String()); err != nil {
		return nil, err
	}
	pods, err := a.pods.ByIndex(podsByAddress, address.String())
	if err != nil {
		return nil, err
	}
	for _, cached := range pods {
		pod, ok := podcache.Of(cached)
		if !ok {
			continue
		}
		if edge, known := a.onEdge(pod.Node()); known {
			claims = append(claims, gateway.Claim{Kind: gateway.ClaimPod, Node: pod.Node(), Edge: edge})
		}
	}
	return claims, nil
}

// nodeClaims adds a claim of each Node in an index.
func (a Addresses) nodeClaims(ctx context.Context, claims *[]gateway.Claim, kind gateway.ClaimKind, index, key string) error {
	var nodes corev1.NodeList
	if err := a.listByIndex(ctx, &nodes, index, key); err != nil {
		return err
	}
	for i := range nodes.Items {
		node := &nodes.Items[i]
		*claims = append(*claims, gateway.Claim{Kind: kind, Node: node.Name, Edge: gateway.NodeOf(node).Edge})
	}
	return nil
}

// listByIndex reads an index. The objects that it returns belong to the cache and must not be changed.
func (a Addresses) listByIndex(ctx context.Context, into client.ObjectList, index, key string, more ...client.ListOption) error {
	return a.objects.List(ctx, into, append(more, client.MatchingFields{index: key}, client.UnsafeDisableDeepCopy)...)
}

// Endpoints implements gateway.Addresses.
func (a Addresses) Endpoints(ctx context.Context, to netip.AddrPort) (string, []gateway.Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	var services corev1.ServiceList
	if err := a.listByIndex(ctx, &services, servicesByClusterIP, to.Addr().String()); err != nil || len(services.Items) == 0 {
		return "", nil, err
	}
	service := &services.Items[0] // Kubernetes assigns a ClusterIP once
	called := client.ObjectKeyFromObject(service).String()
	port, ok := servicePort(service, to.Port())
	if !ok {
		return called, nil, nil
	}
	family := discoveryv1.AddressTypeIPv6
	if to.Addr().Is4() {
		family = discoveryv1.AddressTypeIPv4
	}
	var slices discoveryv1.EndpointSliceList
	if err := a.listByIndex(ctx, &slices, slicesByService, service.Name, client.InNamespace(service.Namespace)); err != nil {
		return "", nil, err
	}
	var endpoints []gateway.Endpoint
	for i := range slices.Items {
		slice := &slices.Items[i]
		target, ok := slicePort(slice, port)
		if !ok || slice.AddressType != family {
			continue
		}
		for j := range slice.Endpoints {
			if e, counts := a.resolveEndpoint(slice.Namespace, &slice.Endpoints[j], target); counts {
				endpoints = append(endpoints, e)
			}
		}
	}
	return called, endpoints, nil
}

// resolveEndpoint reads one endpoint, and reports whether it counts. A static pod does not count: a gateway creates its
// mirror pod with labels of its choice, and could put itself into any Service.
func (a Addresses) resolveEndpoint(namespace string, of *discoveryv1.Endpoint, port uint16) (e gateway.Endpoint, counts bool) {
	if len(of.Addresses) == 0 {
		return e, false
	}
	address, err := netip.ParseAddr(of.Addresses[0])
	if err != nil {
		return e, false
	}
	e = gateway.Endpoint{Address: netip.AddrPortFrom(address.Unmap(), port), Ready: ptr.Deref(of.Conditions.Ready, true)}
	name := ptr.Deref(of.NodeName, "")
	if edge, known := a.onEdge(name); !edge {
		return e, known || name == "" // an endpoint on a deleted node does not count
	}
	e.Node = name
	if of.TargetRef == nil || of.TargetRef.Kind != "Pod" {
		return e, false
	}
	found, known, err := a.pods.GetByKey(namespace + "/" + of.TargetRef.Name)
	if err != nil || !known {
		return e, false
	}
	pod, ok := podcache.Of(found)
	return e, ok && !pod.Mirror() && pod.Node() == name
}

// servicePort returns the name of a Service's TCP port.
func servicePort(service *corev1.Service, number uint16) (name string, ok bool) {
	for _, p := range service.Spec.Ports {
		if p.Port == int32(number) && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "") {
			return p.Name, true
		}
	}
	return "", false
}

// slicePort returns the number that an EndpointSlice has for a port of its Service.
func slicePort(slice *discoveryv1.EndpointSlice, name string) (number uint16, ok bool) {
	for _, p := range slice.Ports {
		n := ptr.Deref(p.Port, 0)
		if ptr.Deref(p.Name, "") == name && ptr.Deref(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP && n > 0 && n <= 65535 {
			return uint16(n), true
		}
	}
	return 0, false
}
