package config

import (
	"fmt"
	"net/netip"
)

// Certificates limits the names in the serving certificates of gateways' kubelets, besides those that the cloud assigned.
type Certificates struct {
	// Networks, such as 10.1.0.0/16, are networks whose addresses a gateway may have in its certificate because its Node reports them.
	// There is no proof that the address is the gateway's: the holder of one gateway's key gets a certificate of the cluster's CA for any
	// address in these networks. Only stock kubelets that request their certificates themselves need one.
	Networks []string `json:"networks,omitempty"`
}

// Prefixes parses Networks.
func (c Certificates) Prefixes() ([]netip.Prefix, error) {
	networks := make([]netip.Prefix, 0, len(c.Networks))
	for _, text := range c.Networks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("certificates.networks: %w", err)
		}
		networks = append(networks, network)
	}
	return networks, nil
}

func (c Certificates) validate() error {
	_, err := c.Prefixes()
	return err
}
