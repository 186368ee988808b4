package config

import (
	"errors"
	"fmt"
	"net/netip"
)

// Pods says whether and how the pods of a gateway reach its local API.
type Pods struct {
	// Disabled leaves them with the way that the cluster has for everybody: the address of the Service default/kubernetes.
	Disabled bool `json:"disabled,omitempty"`
	// Address is host:port where the local API listens for them beside that Service's own addresses; proxies of Services lead
	// there. The default is 169.254.64.1:6443.
	Address string `json:"address,omitempty"`
	// Outside lets peers of other machines connect, too: for pods that have a network card of their own.
	Outside bool `json:"outside,omitempty"`
	// ExpiredTokens is how long after its end a token is accepted that nobody could renew; 0 means 90 days. Below 0: never.
	ExpiredTokens Duration `json:"expiredTokens,omitzero"`
	// ScopeGrace is how long a kind is kept up to date after the last program that asked for it has left; 0 means 10 min.
	ScopeGrace Duration `json:"scopeGrace,omitzero"`
}

// defaultPodAddress is link-local, so that it is in nobody's network, and not one of those that others have taken there
// (169.254.169.254 of clouds, 169.254.20.10 of node-local DNS).
const defaultPodAddress = "169.254.64.1:6443"

// setDefaults fills in defaults. A runtime without containers has no pods that could ask.
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
