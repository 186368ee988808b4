package agent

import (
	"encoding/json"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/edged/hostaddr"
	"github.com/frond-edge/frond/edged/kubelet"
	"github.com/frond-edge/frond/leaf/localapi"
	"github.com/frond-edge/frond/leaf/store"
)

// localAPIConfig returns the local API's configuration.
func (n *Node) localAPIConfig() localapi.Config {
	c := n.cfg.LocalAPI
	cfg := localapi.Config{
		Node: n.cfg.Node, UnixSocket: c.Socket, Address: c.Address, CertFile: c.CertFile, KeyFile: c.KeyFile, ClientCAFile: c.ClientCAFile,
		ScopeGrace: time.Duration(c.Pods.ScopeGrace), Metrics: n.metrics,
		Online: func() bool {
			up, _ := leafLink{n.leaf}.State()
			return up
		},
		LinkBudget: func() int {
			if d := n.delivery.Load(); d != nil {
				return d.LinkBudget()
			}
			return 0
		},
	}
	if !n.cfg.Kubelet.External {
		cfg.Kubelet = n.kubeletEndpoint()
	}
	if endpoint := n.runtimeEndpoint(); endpoint != "" {
		cfg.Stopper = kubelet.ContainerStopper{Endpoint: endpoint}
	}
	if address, err := netip.ParseAddrPort(c.Pods.Address); err == nil && !c.Pods.Disabled { // it was validated
		cfg.Pods = localapi.PodsConfig{Dir: n.cfg.Dir, Address: address, ClaimAddress: hostaddr.Claim, ExpiryGrace: time.Duration(c.Pods.ExpiredTokens)}
		if !c.Pods.Outside {
			cfg.Pods.IsRemotePeer = hostaddr.IsRemotePeer
		}
	}
	return cfg
}

// lastPodCIDR returns the podCIDR of a node from its store, "" if it is not known. The hollow runtime starts with it: its
// pods start before the kubelet sends it, and addresses outside of the node's range may belong to another node too.
func lastPodCIDR(st *store.Store, node string) string {
	entry, err := st.Get(wire.Key{Resource: "nodes", Name: node})
	if err != nil {
		return ""
	}
	var n corev1.Node
	if json.Unmarshal(entry.Object, &n) != nil {
		return ""
	}
	if _, err := netip.ParsePrefix(n.Spec.PodCIDR); err != nil {
		return ""
	}
	return n.Spec.PodCIDR
}
