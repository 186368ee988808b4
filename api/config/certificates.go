package config

import (
	"fmt"
	"net/netip"
)

// Certificates says which names gateways may have in the serving certificates of their kubelets, beside those that the cloud
// gave them.
type Certificates struct {
	// Networks, such as 10.1.0.0/16, are those whose addresses a gateway may have because its Node reports them. Nothing proves
	// that the address is the gateway's: whoever holds one gateway's key gets a certificate of the cluster's authority for any
	// address there. None is needed but for stock kubelets that ask for their certificates themselves.
	Networks []string `json:"networks,omitempty"`
}

// Prefixes reads Networks.
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
