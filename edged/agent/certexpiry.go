package agent

import (
	"errors"
	"time"

	"github.com/frond-edge/frond/internal/certs"
)

// certExpiry returns the metric of the certificates that this node presents or trusts.
func (n *Node) certExpiry() *certs.Expiry {
	ends := certs.FileExpiries(map[string]string{
		"hub-ca": n.hubCAFile(), "local-api": n.cfg.LocalAPI.CertFile, "local-api-client-ca": n.cfg.LocalAPI.ClientCAFile,
		"kubelet-client-ca": n.cfg.Kubelet.ClientCAFile,
	})
	ends["kubelet"] = func() (time.Time, error) {
		if kubelet := n.localKubelet.Load(); kubelet != nil {
			if now := kubelet.ServingCertificate(); now != nil {
				return now.NotAfter, nil
			}
		}
		return time.Time{}, errors.New("the kubelet has no certificate yet")
	}
	return certs.NewExpiry(ends)
}
