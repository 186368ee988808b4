package leaftest

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/test/kit"
)

// CA signs the certificates of a test's hubs.
type CA struct {
	tb     testing.TB
	signer *mint.Authority
}

// NewCA creates a CA that is valid from 20 years ago until 20 years from now.
func NewCA(tb testing.TB) *CA {
	tb.Helper()
	const years = 20
	signer, err := mint.NewAuthority(x509.Certificate{
		Subject:   pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().AddDate(-years, 0, 0), NotAfter: time.Now().AddDate(years, 0, 0), KeyUsage: x509.KeyUsageCertSign,
	})
	kit.Must(tb, err)
	return &CA{tb: tb, signer: signer}
}

// PEM returns the CA's certificate.
func (ca *CA) PEM() []byte { return mint.EncodeCertificate(ca.signer.Cert.Raw) }

// Hash returns the hash of the CA's public key, in the form that frond join takes.
func (ca *CA) Hash() string {
	sum := sha256.Sum256(ca.signer.Cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ServingCert returns a certificate for 127.0.0.1 and localhost, with the CA at the end of its chain.
func (ca *CA) ServingCert(from, to time.Time) tls.Certificate {
	ca.tb.Helper()
	template := x509.Certificate{
		Subject: pkix.Name{CommonName: "hub"}, NotBefore: from, NotAfter: to, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	mint.AddHosts(&template, []string{"localhost", "127.0.0.1"})
	der, key, err := ca.signer.Issue(template)
	kit.Must(ca.tb, err)
	return tls.Certificate{Certificate: [][]byte{der, ca.signer.Cert.Raw}, PrivateKey: key}
}
