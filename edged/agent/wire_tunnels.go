package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/edged/devices"
	"github.com/frond-edge/frond/edged/kubelet"
	"github.com/frond-edge/frond/edged/nodetunnel"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/leaf/store"
	"github.com/frond-edge/frond/streams/tunnel"
)

// buildTunnels creates the part that joins the cloud's tunnels to this node's own servers, the kubelet's and edgecore's, and
// to its pods; and the parts for devices, which take calls of methods through tunnels. cert is nil for a kubelet outside.
func buildTunnels(f *foundation, st *store.Store, cert *kubelet.ServingCert, part *devices.Devices) (*nodetunnel.Server, []lifecycle.Part, error) {
	tunnels, err := tunnel.NewServer(f.cfg.Node, f.bulk, tunnel.Config{}, tunnel.NewMetrics(f.metrics), f.log)
	if err != nil {
		return nil, nil, fmt.Errorf("tunnels: %w", err)
	}
	forDevices, err := deviceParts(f, st, part, tunnels)
	if err != nil {
		return nil, nil, err
	}
	forServices, err := serviceParts(f, tunnels)
	if err != nil {
		return nil, nil, err
	}
	toKubelet := nodetunnel.Target{Address: kubeletAddress(f.cfg)}
	if cert != nil {
		toKubelet.Gate = nodetunnel.NewServingGate(cert)
	}
	server, err := nodetunnel.New(nodetunnel.Config{
		Node: f.cfg.Node,
		Targets: map[uint16]nodetunnel.Target{
			uint16(f.cfg.Kubelet.Port): toKubelet, config.EdgeKubeletPort: toKubelet,
			config.EdgeMetricsPort: {Address: dialAddress(f.cfg.Listen)},
		},
		StoredPods: func() []store.Entry {
			list, _ := st.List("", "pods", "")
			return list
		},
		RuntimeAddresses: runtimeAddresses(f.cfg),
		HostAddresses:    net.InterfaceAddrs,
	}, tunnels)
	return server, append(forDevices, forServices...), err
}

// runtimeAddresses returns the function that asks the runtime which addresses it has assigned to a pod. The hollow runtime's pods
// have addresses but no network: a dial would leave this machine for any host with that address.
func runtimeAddresses(cfg config.EdgeCore) func(ctx context.Context, podUID string) ([]netip.Addr, error) {
	refuse := func(why string) func(context.Context, string) ([]netip.Addr, error) {
		return func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New(why) }
	}
	switch endpoint := runtimeEndpoint(cfg); {
	case cfg.Runtime.Hollow:
		return refuse("the hollow runtime gives its pods no network")
	case endpoint == "":
		return refuse("edgecore does not know the container runtime; set runtime.endpoint in its configuration")
	default:
		return kubelet.SandboxClient{Endpoint: endpoint}.Addresses
	}
}

// kubeletAddress returns the address at which the kubelet's port is dialled.
func kubeletAddress(cfg config.EdgeCore) string {
	return dialAddress(net.JoinHostPort(cfg.Kubelet.Address, strconv.Itoa(int(cfg.Kubelet.Port))))
}

// dialAddress returns the address at which a listening server can be dialled.
func dialAddress(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address // the configuration was validated; the dial reports the fault
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}
