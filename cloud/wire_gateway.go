package cloud

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"go.uber.org/zap"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/gateway"
	"github.com/frond-edge/frond/cloud/gateway/kubeauth"
	"github.com/frond-edge/frond/controllers/ports"
	"github.com/frond-edge/frond/controllers/reports"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/call"
	"github.com/frond-edge/frond/streams/tunnel"
)

// buildGateway creates the parts that connect to nodes: it starts the dialer of tunnels, and the gateway in front of it.
func buildGateway(f *foundation, admission *admission, dialer *tunnel.Dialer) (*gateway.Gateway, []lifecycle.Part, error) {
	authorizer, err := kubeauth.New(f.clients.Own)
	if err != nil {
		return nil, nil, fmt.Errorf("gateway: %w", err)
	}
	direct, err := directConfig(f.cfg)
	if err != nil {
		return nil, nil, err
	}
	g := f.cfg.Gateway
	trusted, err := g.Networks()
	if err != nil {
		return nil, nil, fmt.Errorf("gateway: %w", err)
	}
	way, err := gateway.New(gateway.Config{
		Socket: g.Socket, Address: g.Address, ScrapeAddress: g.ScrapeAddress, ReusePort: g.ReusePort, Direct: direct, TrustedNetworks: trusted,
		CertFile: g.CertFile, KeyFile: g.KeyFile, ClientCAFile: g.ClientCAFile,
		KubeletCAFile: g.KubeletCAFile, KubeletCertFile: g.KubeletCertFile, KubeletKeyFile: g.KubeletKeyFile,
		BlockedReason: admission.blockedReason,
	}, f.nodes, f.addresses, tunnelDialer{dialer}, authorizer, f.registry, f.log.Named("gateway"))
	if err != nil {
		return nil, nil, err
	}
	return way, []lifecycle.Part{
		{Name: "tunnels", Start: dialer.Start},
		{Name: "gateway-nodes", Start: func(ctx context.Context) error { return f.nodes.Follow(ctx, way.OnNodeChanged) }},
		{Name: "gateway", Start: way.Start, Ready: way.Ready()},
	}, nil
}

// tunnelDialer implements gateway.Tunnels.
type tunnelDialer struct{ *tunnel.Dialer }

// errReservedPort refuses what would pass by the rights on devices and rules.
var errReservedPort = fmt.Errorf("ports %d and %d are for calls of devices' methods (frond device call) and for Rules", config.EdgeDevicePort, config.EdgeServicePort)

func (t tunnelDialer) Dial(ctx context.Context, node string, port uint16) (net.Conn, error) {
	if port == config.EdgeDevicePort || port == config.EdgeServicePort {
		return nil, errReservedPort
	}
	conn, err := t.Dialer.Dial(ctx, node, port)
	if err != nil {
		return nil, err // and not a nil *tunnel.Conn in an interface
	}
	return conn, nil
}

func (t tunnelDialer) DialAddress(ctx context.Context, node string, to netip.AddrPort) (net.Conn, error) {
	conn, err := t.Dialer.DialAddress(ctx, node, to)
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// buildPorts creates the part that allocates node ports, if the apiserver uses no proxy, and returns the addresses by
// which nodes are called.
func buildPorts(f *foundation, way *gateway.Gateway) (reports.NodeAddressing, []lifecycle.Part, error) {
	cfg := f.cfg.Gateway
	addressing := reports.NodeAddressing{MetricsHost: cfg.MetricsHost}
	if cfg.Direct.Host == "" {
		return addressing, nil, nil
	}
	ranges, err := cfg.Direct.Ranges()
	if err != nil {
		return addressing, nil, fmt.Errorf("ports of nodes: %w", err)
	}
	log := f.log.Named("ports")
	requestNode := func(node string) {
		if err := call.RequestReport(f.hub.nc, node, wire.Key{Resource: "nodes", Name: node}); err != nil {
			log.Warn("node not asked to report itself", zap.String("node", node), zap.Error(err))
		}
	}
	allocator := ports.New(ranges, f.clients.Own, f.objects, f.members.Owns, way.SetPorts, requestNode, log)
	addressing.DirectHost, addressing.Port = cfg.Direct.Host, allocator.Port
	return addressing, []lifecycle.Part{{Name: "ports", Start: allocator.Start}}, nil
}

// directConfig returns the configuration of the gateway's direct ports.
func directConfig(cfg config.CloudCore) (gateway.Direct, error) {
	d := cfg.Gateway.Direct
	networks, err := d.Networks()
	if err != nil {
		return gateway.Direct{}, fmt.Errorf("gateway: %w", err)
	}
	return gateway.Direct{Enabled: d.Host != "", Listen: d.Listen, From: networks, CertFile: d.CertFile, KeyFile: d.KeyFile}, nil
}
