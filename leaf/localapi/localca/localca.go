// Package localca is the CA of a gateway's listeners for its pods.
package localca

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

// CA is the gateway's own CA. It certifies one server, the local API as pods reach it, and its key never leaves the
// gateway's disk. Its certificates do not expire: those of a gateway that is offline for years must stay valid, and its
// clock may show any time.
type CA struct {
	cert    *x509.Certificate
	key     crypto.Signer
	CertPEM []byte
}

const (
	localCACertFile = "localapi-ca.crt"
	localCAKeyFile  = "localapi-ca.key"
)

// noExpiry returns RFC 5280's date of a certificate that does not expire.
func noExpiry() time.Time { return time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC) }

// Open reads the CA in dir, or creates one.
func Open(dir, node string) (*CA, error) {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, localCACertFile), filepath.Join(dir, localCAKeyFile))
	if errors.Is(err, fs.ErrNotExist) {
		if err := createLocalCA(dir, node); err != nil {
			return nil, fmt.Errorf("make the local CA: %w", err)
		}
		pair, err = tls.LoadX509KeyPair(filepath.Join(dir, localCACertFile), filepath.Join(dir, localCAKeyFile))
	}
	if err != nil {
		return nil, fmt.Errorf("read the local CA: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("read the local CA: its key cannot sign")
	}
	return &CA{cert: pair.Leaf, key: key, CertPEM: encodePEM("CERTIFICATE", pair.Leaf.Raw)}, nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// createLocalCA writes the key last: after a crash in between there is no pair, and the next start creates both again.
func createLocalCA(dir, node string) error {
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
	// The name contains the serial, so that two CAs of one node, before and after it lost its disk, are distinct.
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: fmt.Sprintf("frond local api %s %x", node, serial.Bytes()[:4])},
		NotBefore: time.Unix(0, 0), NotAfter: noExpiry(),
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
	if err := renameio.WriteFile(filepath.Join(dir, localCACertFile), encodePEM("CERTIFICATE", der), 0o644); err != nil {
		return err
	}
	return renameio.WriteFile(filepath.Join(dir, localCAKeyFile), encodePEM("PRIVATE KEY", private), 0o600)
}

func newSerial() (*big.Int, error) {
	const bits = 127 // positive, and below the allowed 20 bytes
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), bits))
	if err != nil {
		return nil, err
	}
	return n.SetBit(n, bits-1, 1), nil
}

// IssueServingCert issues a serving certificate for the API's names and these addresses. Its key exists only in memory.
func (a *CA) IssueServingCert(node string, addresses []netip.Addr) (*tls.Certificate, error) {
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
