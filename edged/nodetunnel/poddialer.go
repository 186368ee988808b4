package nodetunnel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/streams/tunnel"
)

// podDialer connects the cloud's tunnels to pods of this node. It verifies the addresses of pods itself: the store lists
// the pods, but its content comes from the cloud, so the runtime, or the machine for pods in its network, must confirm the
// address. A stolen cloudcore therefore reaches no other address on the gateway's networks.
type podDialer struct{ cfg Config }

// serveStream joins a stream to a connection to the requested pod.
func (p podDialer) serveStream(ctx context.Context, in *tunnel.Incoming) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if err := p.admitTarget(ctx, in.Target()); err != nil {
		in.Refuse(err.Error())
		return
	}
	Target{Address: in.Target().String()}.serveStream(ctx, in)
}

// dialedPod holds the fields of a pod that a dial needs.
type dialedPod struct {
	Metadata struct {
		UID         string            `json:"uid"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec struct {
		NodeName       string             `json:"nodeName"`
		HostNetwork    bool               `json:"hostNetwork"`
		Containers     []corev1.Container `json:"containers"`
		InitContainers []corev1.Container `json:"initContainers"`
	} `json:"spec"`
	Status struct {
		Phase  corev1.PodPhase `json:"phase"`
		PodIPs []corev1.PodIP  `json:"podIPs"`
	} `json:"status"`
}

// admitTarget returns nil if the cloud may reach an address, or the reason why not. It may reach all ports of a pod that
// has its own address, and the declared TCP ports of a pod in the host's network.
func (p podDialer) admitTarget(ctx context.Context, to netip.AddrPort) error {
	address := to.Addr()
	if address.IsLoopback() || address.IsLinkLocalUnicast() || address.IsMulticast() || address.IsUnspecified() {
		return fmt.Errorf("%s is never a pod's address", address)
	}
	unfit := fmt.Errorf("no running pod of this node has the address %s", address)
	text := []byte(address.String())
	for _, entry := range p.cfg.StoredPods() {
		if !bytes.Contains(entry.Object, text) {
			continue // the common case, cheaper than parsing
		}
		var pod dialedPod
		if err := json.Unmarshal(entry.Object, &pod); err != nil || !pod.runsAt(p.cfg.Node, address) {
			continue
		}
		err := p.confirmAddress(ctx, &pod, to)
		if err == nil {
			return nil
		}
		unfit = err // several pods in the host's network have its address
	}
	return unfit
}

// confirmAddress checks with the runtime, or the machine, whether a pod has the address in the store.
func (p podDialer) confirmAddress(ctx context.Context, pod *dialedPod, to netip.AddrPort) error {
	if pod.Spec.HostNetwork {
		own, err := p.cfg.HostAddresses()
		if err != nil {
			return fmt.Errorf("addresses of this machine: %w", err)
		}
		switch {
		case !slices.ContainsFunc(own, func(a net.Addr) bool { return addressOf(a) == to.Addr() }):
			return fmt.Errorf("the address %s of a pod in the host's network is not this machine's", to.Addr())
		case !pod.declaresPort(to.Port()):
			return fmt.Errorf("no pod in the host's network declares the TCP port %d; add it to the ports of its container", to.Port())
		}
		return nil
	}
	uid := pod.Metadata.UID
	if static := pod.Metadata.Annotations[corev1.MirrorPodAnnotationKey]; static != "" {
		uid = static // the runtime knows the static pod, not the mirror pod
	}
	given, err := p.cfg.RuntimeAddresses(ctx, uid)
	if err != nil {
		return fmt.Errorf("pod's address not confirmed by the runtime: %w", err)
	}
	if !slices.Contains(given, to.Addr()) {
		return fmt.Errorf("the container runtime has no running pod with the address %s", to.Addr())
	}
	return nil
}

// addressOf parses an address of an interface.
func addressOf(a net.Addr) netip.Addr {
	if network, ok := a.(*net.IPNet); ok {
		if address, ok := netip.AddrFromSlice(network.IP); ok {
			return address.Unmap()
		}
	}
	return netip.Addr{}
}

// runsAt reports whether a pod runs on the node with an address.
func (p *dialedPod) runsAt(node string, address netip.Addr) bool {
	return p.Spec.NodeName == node && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed &&
		slices.ContainsFunc(p.Status.PodIPs, func(ip corev1.PodIP) bool {
			parsed, err := netip.ParseAddr(ip.IP)
			return err == nil && parsed.Unmap() == address
		})
}

// declaresPort reports whether a container declares a TCP port.
func (p *dialedPod) declaresPort(port uint16) bool {
	return slices.ContainsFunc(slices.Concat(p.Spec.Containers, p.Spec.InitContainers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(declared corev1.ContainerPort) bool {
			return declared.ContainerPort == int32(port) && (declared.Protocol == corev1.ProtocolTCP || declared.Protocol == "")
		})
	})
}
