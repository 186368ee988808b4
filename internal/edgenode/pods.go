package edgenode

import (
	"net/netip"
	"time"

	"github.com/frond-edge/frond/edged"
	"github.com/frond-edge/frond/internal/hostaddr"
	"github.com/frond-edge/frond/leaf/localapi"
)

// localAPI is the local API's configuration.
func (n *Node) localAPI() localapi.Config {
	c := n.cfg.LocalAPI
	cfg := localapi.Config{
		Node: n.cfg.Node, UnixSocket: c.Socket, Address: c.Address, CertFile: c.CertFile, KeyFile: c.KeyFile, ClientCAFile: c.ClientCAFile,
		ScopeGrace: time.Duration(c.Pods.ScopeGrace), Metrics: n.metrics,
		Online: func() bool {
			up, _ := link{n.leaf}.State()
			return up
		},
		Take: func() int {
			if d := n.delivery.Load(); d != nil {
				return d.Take()
			}
			return 0
		},
	}
	if !n.cfg.Kubelet.External {
		cfg.Kubelet = n.kubeletPort()
	}
	if endpoint := n.runtimeEndpoint(); endpoint != "" {
		cfg.Stopper = edged.Stopper{Endpoint: endpoint}
	}
	if address, err := netip.ParseAddrPort(c.Pods.Address); err == nil && !c.Pods.Disabled { // it was validated
		cfg.Pods = localapi.Pods{Dir: n.cfg.Dir, Address: address, Claim: hostaddr.Claim, Expired: time.Duration(c.Pods.ExpiredTokens)}
		if !c.Pods.Outside {
			cfg.Pods.Outside = hostaddr.Outside
		}
	}
	return cfg
}
