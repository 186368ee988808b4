package config

import "errors"

// Inspect configures cloudcore's listener for frond status and frond sync: TLS, for users of the Kubernetes cluster only.
type Inspect struct {
	// Address is host:port; "" opens none.
	Address string `json:"address,omitempty"`
	// CertFile and KeyFile are its certificate, for inspect.ServerName.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// ClientCAFile is the CA of the users' client certificates, Kubernetes' own; without it they need tokens.
	ClientCAFile string `json:"clientCAFile,omitempty"`
}

func (i Inspect) validate() error {
	if i.Address == "" {
		return nil
	}
	return errors.Join(validateHostPort("inspect.address", i.Address), requireField("inspect.certFile", i.CertFile), requireField("inspect.keyFile", i.KeyFile))
}
