package config

import (
	"errors"
	"fmt"
	"net/netip"
)

// Rules configures what cloudcore does for KubeEdge's Rules.
type Rules struct {
	// AllowedTargets are networks, such as 10.20.0.0/16, to which rules may send messages beside public addresses. Whoever may create Rules reaches
	// them from cloudcore.
	AllowedTargets []string `json:"allowedTargets,omitempty"`
}

// Prefixes returns AllowedTargets.
func (r Rules) Prefixes() (all []netip.Prefix, err error) {
	var faults []error
	for i, text := range r.AllowedTargets {
		network, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
			faults = append(faults, fmt.Errorf("rules.allowedTargets[%d]: %q is no network such as 10.20.0.0/16", i, text))
		case network != network.Masked():
			faults = append(faults, fmt.Errorf("rules.allowedTargets[%d]: %q has bits beyond its length, want %s", i, text, network.Masked()))
		}
		all = append(all, network)
	}
	return all, errors.Join(faults...)
}

func (r Rules) validate() error {
	_, err := r.Prefixes()
	return err
}
