package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Rules configures what cloudcore does for KubeEdge's Rules.
type Rules struct {
	// AllowedTargets are networks, such as 10.20.0.0/16, to which rules may send messages beside public addresses. Whoever may create Rules reaches
	// them from cloudcore.
	AllowedTargets []string `json:"allowedTargets,omitempty"`
	// Entry is where callers reach services of gateways.
	Entry RuleEntry `json:"entry,omitzero"`
}

// RuleEntry configures the REST entry of KubeEdge.
type RuleEntry struct {
	// Address is host:port; "" opens none. KubeEdge's port is 9443.
	Address string `json:"address,omitempty"`
	// CertFile, KeyFile and ClientCAFile are for TLS; the defaults are those of Inspect.
	CertFile     string `json:"certFile,omitempty"`
	KeyFile      string `json:"keyFile,omitempty"`
	ClientCAFile string `json:"clientCAFile,omitempty"`
	// Insecure serves plain HTTP to everybody, as KubeEdge does: whoever reaches the address calls every service that a Rule names.
	Insecure bool `json:"insecure,omitempty"`
}

// defaultInsecureEntry is KubeEdge's port, on loopback.
const defaultInsecureEntry = "127.0.0.1:9443"

// WithDefaults returns the entry with its address and files.
func (e RuleEntry) WithDefaults(i Inspect) RuleEntry {
	if e.Insecure {
		return RuleEntry{Address: cmp.Or(e.Address, defaultInsecureEntry), Insecure: true}
	}
	if e.CertFile == "" && e.KeyFile == "" {
		e.CertFile, e.KeyFile = i.CertFile, i.KeyFile
	}
	e.ClientCAFile = cmp.Or(e.ClientCAFile, i.ClientCAFile)
	return e
}

func (e RuleEntry) validate(i Inspect) error {
	if e.Insecure && (e.CertFile != "" || e.KeyFile != "" || e.ClientCAFile != "") {
		return errors.New("rules.entry.insecure: the entry has no certificates then; remove certFile, keyFile and clientCAFile")
	}
	e = e.WithDefaults(i)
	if e.Address == "" {
		return nil
	}
	err := validateHostPort("rules.entry.address", e.Address)
	if e.Insecure {
		return err
	}
	return errors.Join(err, requireField("rules.entry.certFile", e.CertFile), requireField("rules.entry.keyFile", e.KeyFile))
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

func (r Rules) validate(i Inspect) error {
	_, err := r.Prefixes()
	return errors.Join(err, r.Entry.validate(i))
}

// EdgeServicePort is the tunnel port of edgecore's part that calls services. As EdgeDevicePort, it is opened to nobody but its one user, cloud/rules.
const EdgeServicePort = 10283

// ServiceBus configures which services of a gateway Rules may call.
type ServiceBus struct {
	// Ports are those of HTTP servers at 127.0.0.1; without any, rules call nothing.
	Ports []int `json:"ports,omitempty"`
}

// Numbers returns the ports.
func (s ServiceBus) Numbers() []uint16 {
	numbers := make([]uint16, len(s.Ports))
	for i, port := range s.Ports {
		numbers[i] = uint16(port)
	}
	return numbers
}

func (s ServiceBus) validate() error {
	if i := slices.IndexFunc(s.Ports, func(port int) bool { return port < 1 || port > 65535 }); i >= 0 {
		return fmt.Errorf("serviceBus.ports[%d]: %d is no port", i, s.Ports[i])
	}
	return nil
}
