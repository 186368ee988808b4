package csrs

import (
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/api/wire"
)

const (
	// MaxRequest is the maximum size of a request's PEM in bytes: one with an RSA key of 4096 bits and ten names has 2 KiB.
	MaxRequest = 8 << 10

	userPrefix = "system:node:"
	nodesGroup = "system:nodes"
)

// AllowedNames are the names and addresses that a gateway's certificate may contain besides its node name and its
// tunnel address.
type AllowedNames struct {
	// DirectHost is the host of gateway.direct; "" for none.
	DirectHost string
	// Networks are the networks in which a gateway may have an address because its Node reports it; none: it may have
	// no such address.
	Networks []netip.Prefix
}

// decision is the result for one request.
type decision string

const (
	leaveUndecided decision = "left"
	approveRequest decision = "approved"
	denyRequest    decision = "denied"
)

// requestorNode returns the node that made a request; "" if the request is not for this package, or is already decided.
func requestorNode(csr *certificatesv1.CertificateSigningRequest) string {
	node, isNode := strings.CutPrefix(csr.Spec.Username, userPrefix)
	if csr.Spec.SignerName != certificatesv1.KubeletServingSignerName || !isNode || !slices.Contains(csr.Spec.Groups, nodesGroup) {
		return ""
	}
	if len(csr.Status.Certificate) > 0 || slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed
	}) {
		return ""
	}
	return node
}

// decide decides on the request of a node for itself. node is its Node in Kubernetes, nil if there is none. A denial
// carries its reason.
func decide(csr *certificatesv1.CertificateSigningRequest, name string, node *corev1.Node, allowed AllowedNames) (decision, error) {
	if node == nil {
		return leaveUndecided, nil
	}
	if _, edge := node.Labels[names.LabelEdge]; !edge {
		return leaveUndecided, nil // not a gateway, or one that is not in the cache yet
	}
	request, err := parseRequest(csr.Spec.Request)
	if err != nil {
		return denyRequest, err
	}
	for _, check := range []func() error{
		func() error { return checkSubject(request, csr.Spec.Username) },
		func() error { return checkUsages(csr.Spec.Usages) },
		func() error { return allowed.checkNames(request, name, node) },
	} {
		if err := check(); err != nil {
			return denyRequest, err
		}
	}
	return approveRequest, nil
}

// parseRequest parses a PEM that contains exactly one request, and verifies that the sender holds the key.
func parseRequest(data []byte) (*x509.CertificateRequest, error) {
	if len(data) > MaxRequest {
		return nil, fmt.Errorf("the request has %d bytes, %d are enough", len(data), MaxRequest)
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" || len(rest) > 0 {
		return nil, errors.New("the request is not one PEM block of type CERTIFICATE REQUEST")
	}
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the request cannot be read: %w", err)
	}
	if err := request.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the request's signature: %w", err)
	}
	return request, nil
}

// checkSubject requires exactly the requestor's own name and group.
func checkSubject(request *x509.CertificateRequest, username string) error {
	s := request.Subject
	switch {
	case s.CommonName != username:
		return fmt.Errorf("the common name is %.80q, and the requestor %s", s.CommonName, username)
	case !slices.Equal(s.Organization, []string{nodesGroup}):
		return fmt.Errorf("the organization is %.80q, not %s alone", s.Organization, nodesGroup)
	case len(s.Names) != 2: //nolint:mnd // the two above
		return errors.New("the subject has more than a common name and an organization")
	}
	return nil
}

// checkUsages requires exactly the usages of a serving certificate. RSA keys also encipher.
func checkUsages(have []certificatesv1.KeyUsage) error {
	want := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
	sorted := slices.Sorted(slices.Values(have))
	if slices.Equal(sorted, want) || slices.Equal(sorted, slices.Sorted(slices.Values(append(want, certificatesv1.UsageKeyEncipherment)))) {
		return nil
	}
	return fmt.Errorf("the usages are %.200q, not %q", have, want)
}

// checkNames rejects every name that does not lead to this very node.
func (n AllowedNames) checkNames(request *x509.CertificateRequest, name string, node *corev1.Node) error {
	if len(request.EmailAddresses)+len(request.URIs) > 0 {
		return errors.New("e-mail addresses and URIs are not names of a node")
	}
	if len(request.DNSNames)+len(request.IPAddresses) == 0 {
		return errors.New("the request names no host")
	}
	alternatives := asn1.ObjectIdentifier{2, 5, 29, 17} // RFC 5280 §4.2.1.6
	for _, e := range request.Extensions {
		if !e.Id.Equal(alternatives) {
			return fmt.Errorf("the extension %s is not for a node", e.Id)
		}
	}
	for _, host := range request.DNSNames {
		if host != name && (host != n.DirectHost || host == "") {
			return fmt.Errorf("the DNS name %.80q is not this node's", host)
		}
	}
	for _, ip := range request.IPAddresses {
		if !n.ownsAddress(ip, name, node) {
			return fmt.Errorf("the IP address %s is not this node's: beside that of its tunnel, %s, it may have what its Node reports within the networks of certificates.networks",
				ip, wire.TunnelAddress(name))
		}
	}
	return nil
}

func (n AllowedNames) ownsAddress(ip net.IP, name string, node *corev1.Node) bool {
	address, ok := netip.AddrFromSlice(ip)
	address = address.Unmap()
	switch {
	case !ok:
		return false
	case address == wire.TunnelAddress(name):
		return true
	}
	if direct, err := netip.ParseAddr(n.DirectHost); err == nil && direct == address {
		return true
	}
	if !slices.ContainsFunc(n.Networks, func(p netip.Prefix) bool { return p.Contains(address) }) {
		return false
	}
	return slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool {
		reported, err := netip.ParseAddr(a.Address)
		return err == nil && reported.Unmap() == address && (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP)
	})
}
