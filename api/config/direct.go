package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Direct lets a kube-apiserver reach nodes without a proxy: each node has its own port at one host, which all cloudcores serve.
type Direct struct {
	// Host is the IP address or DNS name by which kube-apiserver reaches the cloudcores; "" turns Direct off. The kubelets' serving
	// certificates must name it.
	Host string `json:"host,omitempty"`
	// Ports are ranges such as 30000-30999, or single ports.
	Ports []string `json:"ports,omitempty"`
	// Listen is the IP address that cloudcore listens on; the default is all.
	Listen string `json:"listen,omitempty"`
	// From are the networks that may connect, such as 10.0.0.0/8; required.
	From []string `json:"from,omitempty"`
	// CertFile and KeyFile are the certificate for the reply that tells kube-apiserver why a node cannot be reached. Without them the
	// connection closes without a reply.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

// PortRange is a range of ports, both ends included.
type PortRange struct{ First, Last uint16 }

// EdgeKubeletPort is the tunnel port that leads to a node's kubelet, whatever its address.
const EdgeKubeletPort = 10250

// Ranges parses Ports.
func (d Direct) Ranges() ([]PortRange, error) {
	ranges := make([]PortRange, 0, len(d.Ports))
	for _, text := range d.Ports {
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		low, lowErr := strconv.ParseUint(first, 10, 16)
		high, highErr := strconv.ParseUint(last, 10, 16)
		if lowErr != nil || highErr != nil || low == 0 || high < low {
			return nil, fmt.Errorf("%q is no range of ports", text)
		}
		ranges = append(ranges, PortRange{First: uint16(low), Last: uint16(high)})
	}
	return ranges, nil
}

// Networks parses TrustedNetworks.
func (g Gateway) Networks() ([]netip.Prefix, error) { return parseNetworks(g.TrustedNetworks) }

// Networks parses From.
func (d Direct) Networks() ([]netip.Prefix, error) { return parseNetworks(d.From) }

func parseNetworks(texts []string) ([]netip.Prefix, error) {
	networks := make([]netip.Prefix, 0, len(texts))
	for _, text := range texts {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, err
		}
		networks = append(networks, network)
	}
	return networks, nil
}

func (d Direct) validate() error {
	if d.Host == "" {
		return nil
	}
	var faults []error
	ranges, err := d.Ranges()
	if err != nil {
		faults = append(faults, fmt.Errorf("gateway.direct.ports: %w", err))
	} else if len(ranges) == 0 {
		faults = append(faults, errors.New("gateway.direct.ports: required"))
	}
	if _, err := d.Networks(); err != nil {
		faults = append(faults, fmt.Errorf("gateway.direct.from: %w", err))
	} else if len(d.From) == 0 {
		faults = append(faults, errors.New("gateway.direct.from: required: the networks of the apiservers, such as 10.1.0.0/16"))
	}
	if d.Listen != "" {
		if _, err := netip.ParseAddr(d.Listen); err != nil {
			faults = append(faults, fmt.Errorf("gateway.direct.listen: %w", err))
		}
	}
	if (d.CertFile == "") != (d.KeyFile == "") {
		faults = append(faults, errors.New("gateway.direct: certFile and keyFile come together"))
	}
	return errors.Join(faults...)
}
