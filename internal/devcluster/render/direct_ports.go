package render

import (
	"net"
	"net/netip"
	"path/filepath"
	"strconv"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/pki"
)

// directHost is an address of this machine that kube-apiserver also calls for nodes/proxy, which excludes loopback. It is loopback
// where the machine has no other address.
func directHost() string {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "127.0.0.1"
	}
	for _, a := range addresses {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && p.Addr().IsGlobalUnicast() {
			return p.Addr().String()
		}
	}
	return "127.0.0.1"
}

// directConfig accepts connections of this machine alone.
func directConfig(l folder.Layout, s folder.State) config.Direct {
	host := directHost()
	d := config.Direct{
		Host: host, Listen: host, From: []string{host + "/32", "127.0.0.0/8"},
		CertFile: filepath.Join(l.PKIDir(), "direct.crt"), KeyFile: filepath.Join(l.PKIDir(), "direct.key"),
	}
	for _, name := range folder.DirectPorts(s.Spec) {
		d.Ports = append(d.Ports, strconv.Itoa(s.Ports[name]))
	}
	return d
}

// issueDirect makes the certificate that a cloudcore serves in place of an unreachable gateway's.
func issueDirect(ca *pki.Authority) error {
	_, err := ca.Issue("direct", pki.Subject{Name: "frond-gateway", Hosts: []string{directHost()}})
	return err
}
