package cloud

import "github.com/frond-edge/frond/api/config"

// certificateFiles returns the files of the certificates that this replica serves or trusts, by their names in its metric.
func certificateFiles(cfg config.CloudCore) map[string]string {
	g := cfg.Gateway
	return map[string]string{
		"hub": cfg.Hub.CertFile, "hub-ca": cfg.Hub.CAFile,
		"inspect": cfg.Inspect.CertFile, "inspect-client-ca": cfg.Inspect.ClientCAFile,
		"gateway": g.CertFile, "gateway-client-ca": g.ClientCAFile, "direct": g.Direct.CertFile,
		"kubelet-client": g.KubeletCertFile, "kubelet-ca": g.KubeletCAFile,
	}
}
