package localapi

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"
)

// authority is the gateway's own CA. It vouches for one server, the local API as pods reach it, and its key never leaves
// the gateway's disk. What it signs has no end: the certificates of a gateway that is offline for years must not expire, and
// its clock may be anywhere.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

const (
	authorityCert = "localapi-ca.crt"
	authorityKey  = "localapi-ca.key"
)

// forever is RFC 5280's date of a certificate that does not expire.
func forever() time.Time { return time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) }

// openAuthority reads the CA in dir, or makes one.
func openAuthority(dir, node string) (*authority, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, authorityCert), filepath.Join(dir, authorityKey))
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeAuthority(dir, node); err != nil {
			return nil, fmt.Errorf("make the local CA: %w", err)
		}
		pair, err = tls.LoadX509KeyPair(filepath.Join(dir, authorityCert), filepath.Join(dir, authorityKey))
	}
	if err != nil {
		return nil, fmt.Errorf("read the local CA: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("read the local CA: its key cannot sign")
	}
	return &authority{cert: pair.Leaf, key: key, pem: encode("CERTIFICATE", pair.Leaf.Raw)}, nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// makeAuthority writes the key last: a crash in between leaves no pair, and the next start makes both again.
func makeAuthority(dir, node string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	serial, err := newSerial()
	if err != nil {
		return err
	}
	// The name carries the serial, so that two CAs of one node, before and after it lost its disk, are not mistaken.
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: fmt.Sprintf("frond local api %s %x", node, serial.Bytes()[:4])},
		NotBefore: time.Unix(0, 0), NotAfter: forever(),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(filepath.Join(dir, authorityCert), encode("CERTIFICATE", der), 0o644); err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, authorityKey), encode("PRIVATE KEY", private), 0o600)
}

func newSerial() (*big.Int, error) {
	const bits = 127 // positive, and below the 20 bytes that are allowed
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), bits))
	if err != nil {
		return nil, err
	}
	return n.SetBit(n, bits-1, 1), nil
}

// issue makes a serving certificate for the API's names and these addresses. Its key is in memory alone.
func (a *authority) issue(node string, addresses []netip.Addr) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "kubernetes"}, NotBefore: a.cert.NotBefore, NotAfter: a.cert.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames: []string{
			"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost", node,
		},
	}
	for _, ip := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("issue a serving certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der, a.cert.Raw}, PrivateKey: key}, nil
}
