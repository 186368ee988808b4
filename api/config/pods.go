package config

import (
	"errors"
	"fmt"
	"net/netip"
)

// Pods configures the access of a gateway's pods to its local API.
type Pods struct {
	// Disabled leaves pods with the cluster's usual API address, that of the Service default/kubernetes.
	Disabled bool `json:"disabled,omitempty"`
	// Address is the host:port on which the local API listens for pods besides that Service's own addresses; service proxies lead there.
	// The default is 169.254.64.1:6443.
	Address string `json:"address,omitempty"`
	// Outside lets peers on other machines connect, too: for pods with their own network card.
	Outside bool `json:"outside,omitempty"`
	// ExpiredTokens is how long after its expiry a token is still accepted if it could not be renewed; 0 means 90 days. Below 0: never.
	ExpiredTokens Duration `json:"expiredTokens,omitzero"`
	// ScopeGrace is how long a kind is kept up to date after its last user has disconnected; 0 means 10 min.
	ScopeGrace Duration `json:"scopeGrace,omitzero"`
}

// defaultPodAddress is link-local, so that it is in no routed network, and differs from the link-local addresses in common use
// (169.254.169.254 of clouds, 169.254.20.10 of node-local DNS).
const defaultPodAddress = "169.254.64.1:6443"

// setDefaults sets defaults. A runtime without containers has no pods that use the API.
func (p *Pods) setDefaults(hollow bool) {
	if hollow && p.Address == "" {
		p.Disabled = true
	}
	if p.Address == "" {
		p.Address = defaultPodAddress
	}
}

func (p Pods) validate() error {
	if p.Disabled || p.Address == "" {
		return nil
	}
	var faults []error
	if _, err := netip.ParseAddrPort(p.Address); err != nil {
		faults = append(faults, fmt.Errorf("localAPI.pods.address: %w", err))
	}
	if p.ScopeGrace < 0 {
		faults = append(faults, errors.New("localAPI.pods.scopeGrace: it is negative"))
	}
	return errors.Join(faults...)
}
