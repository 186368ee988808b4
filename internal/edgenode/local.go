package edgenode

import (
	"net"
	"strconv"

	"github.com/frond-edge/frond/edged"
	"github.com/frond-edge/frond/leaf/localapi"
)

// kubeletPort is where the local API finds the kubelet that runs in this process.
func (n *Node) kubeletPort() localapi.KubeletPort {
	k := n.cfg.Kubelet
	return localapi.KubeletPort{
		Address:  onThisMachine(net.JoinHostPort(k.Address, strconv.Itoa(int(k.Port)))),
		CertFile: edged.Config{Dir: kubeletDir(n.cfg), CertFile: k.CertFile}.ServingCert(),
	}
}

// runtimeEndpoint is the runtime's CRI socket: the configured one, or the hollow runtime's.
func (n *Node) runtimeEndpoint() string {
	if n.cfg.Runtime.Hollow && n.cfg.Runtime.Endpoint == "" {
		return "unix://" + n.socket("cri.sock")
	}
	return n.cfg.Runtime.Endpoint
}
