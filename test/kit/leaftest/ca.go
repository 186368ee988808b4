package leaftest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"time"
)

// CA signs the certificates of a test's hubs.
type CA struct {
	tb   testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewCA creates a CA that is valid from 20 years ago until 20 years from now.
func NewCA(tb testing.TB) *CA {
	tb.Helper()
	const years = 20
	ca := &CA{tb: tb}
	ca.key = ca.newKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().AddDate(-years, 0, 0), NotAfter: time.Now().AddDate(years, 0, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, ca.key.Public(), ca.key)
	ca.failOn(err)
	ca.cert, err = x509.ParseCertificate(der)
	ca.failOn(err)
	return ca
}

func (ca *CA) failOn(err error) {
	ca.tb.Helper()
	if err != nil {
		ca.tb.Fatal(err)
	}
}

func (ca *CA) newKey() *ecdsa.PrivateKey {
	ca.tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	ca.failOn(err)
	return key
}

// PEM returns the CA's certificate.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// Hash returns the hash of the CA's public key, in the form that frond join takes.
func (ca *CA) Hash() string {
	sum := sha256.Sum256(ca.cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ServingCert returns a certificate for 127.0.0.1 and localhost, with the CA at the end of its chain.
func (ca *CA) ServingCert(from, to time.Time) tls.Certificate {
	ca.tb.Helper()
	key := ca.newKey()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "hub"}, NotBefore: from, NotAfter: to,
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, ca.cert, key.Public(), ca.key)
	ca.failOn(err)
	return tls.Certificate{Certificate: [][]byte{der, ca.cert.Raw}, PrivateKey: key}
}
