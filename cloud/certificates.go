package cloud

// certificateFiles returns the files of the certificates that this replica serves or trusts, by their names in its metric.
func (c *Cloud) certificateFiles() map[string]string {
	g := c.cfg.Gateway
	return map[string]string{
		"hub": c.cfg.Hub.CertFile, "hub-ca": c.cfg.Hub.CAFile,
		"inspect": c.cfg.Inspect.CertFile, "inspect-client-ca": c.cfg.Inspect.ClientCAFile,
		"gateway": g.CertFile, "gateway-client-ca": g.ClientCAFile, "direct": g.Direct.CertFile,
		"kubelet-client": g.KubeletCertFile, "kubelet-ca": g.KubeletCAFile,
	}
}
