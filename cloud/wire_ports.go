package cloud

import (
	"fmt"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/cloud/gateway"
	"github.com/frond-edge/frond/controllers/ports"
	"github.com/frond-edge/frond/controllers/reports"
	"github.com/frond-edge/frond/internal/lifecycle"
	"github.com/frond-edge/frond/streams/call"
)

// buildPorts creates the part that allocates node ports, if the apiserver uses no proxy, and returns the addresses by
// which nodes are called.
func (c *Cloud) buildPorts(nc *nats.Conn, objects cache.Cache, clients kubernetes.Interface, members *Members, way *gateway.Gateway) (reports.NodeAddressing, []lifecycle.Part, error) {
	cfg := c.cfg.Gateway
	ways := reports.NodeAddressing{MetricsHost: cfg.MetricsHost}
	if cfg.Direct.Host == "" {
		return ways, nil, nil
	}
	ranges, err := cfg.Direct.Ranges()
	if err != nil {
		return ways, nil, fmt.Errorf("ports of nodes: %w", err)
	}
	log := c.log.Named("ports")
	tell := func(node string) {
		if err := call.RequestReport(nc, node, wire.Key{Resource: "nodes", Name: node}); err != nil {
			log.Warn("node not asked to report itself", zap.String("node", node), zap.Error(err))
		}
	}
	keeper := ports.New(ranges, clients, objects, members.Owns, way.SetPorts, tell, log)
	ways.DirectHost, ways.Port = cfg.Direct.Host, keeper.Port
	return ways, []lifecycle.Part{{Name: "ports", Start: keeper.Start}}, nil
}

// directConfig returns the configuration of the gateway's direct ports.
func (c *Cloud) directConfig() (gateway.Direct, error) {
	d := c.cfg.Gateway.Direct
	networks, err := d.Networks()
	if err != nil {
		return gateway.Direct{}, fmt.Errorf("gateway: %w", err)
	}
	return gateway.Direct{Enabled: d.Host != "", Listen: d.Listen, From: networks, CertFile: d.CertFile, KeyFile: d.KeyFile}, nil
}
