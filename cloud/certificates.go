package cloud

// certificateFiles are the files of the certificates that this replica shows or trusts, by the names that its metric has for them.
func (c *Cloud) certificateFiles() map[string]string {
	g := c.cfg.Gateway
	return map[string]string{
		"hub": c.cfg.Hub.CertFile, "hub-ca": c.cfg.Hub.CAFile,
		"inspect": c.cfg.Inspect.CertFile, "inspect-client-ca": c.cfg.Inspect.ClientCAFile,
		"gateway": g.CertFile, "gateway-client-ca": g.ClientCAFile, "direct": g.Direct.CertFile,
		"kubelet-client": g.KubeletCertFile, "kubelet-ca": g.KubeletCAFile,
	}
}
