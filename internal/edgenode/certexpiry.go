package edgenode

import (
	"errors"
	"time"

	"github.com/frond-edge/frond/internal/certs"
)

// expiry is the metric of the certificates that this node shows or trusts.
func (n *Node) expiry() *certs.Expiry {
	ends := certs.Files(map[string]string{
		"hub-ca": n.hubCA(), "local-api": n.cfg.LocalAPI.CertFile, "local-api-client-ca": n.cfg.LocalAPI.ClientCAFile,
		"kubelet-client-ca": n.cfg.Kubelet.ClientCAFile,
	})
	ends["kubelet"] = func() (time.Time, error) {
		if kubelet := n.kubeletHere.Load(); kubelet != nil {
			if now := kubelet.ServingCertificate(); now != nil {
				return now.NotAfter, nil
			}
		}
		return time.Time{}, errors.New("the kubelet has no certificate yet")
	}
	return certs.NewExpiry(ends)
}
