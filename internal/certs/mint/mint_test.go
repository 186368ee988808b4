package mint_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"
	"time"

	"github.com/frond-edge/frond/internal/certs/mint"
	"github.com/frond-edge/frond/test/kit"
)

// What an authority signs verifies against it alone, and both survive PEM.
func TestAuthority_IssuedCertificateVerifies(t *testing.T) {
	life := x509.Certificate{Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	ca, err := mint.NewAuthority(life)
	kit.Must(t, err)
	other, err := mint.NewAuthority(life)
	kit.Must(t, err)
	leaf := x509.Certificate{NotBefore: life.NotBefore, NotAfter: life.NotAfter}
	mint.AddHosts(&leaf, []string{"127.0.0.1", "hub.example.com"})
	der, key, err := ca.Issue(leaf)
	kit.Must(t, err)
	cert, err := mint.ParseCertificate(mint.EncodeCertificate(der))
	kit.Must(t, err)
	keyPEM, err := mint.EncodeKey(key)
	kit.Must(t, err)
	parsed, err := mint.ParseKey(keyPEM)
	kit.Must(t, err)
	if !parsed.PublicKey.Equal(cert.PublicKey) {
		t.Error("the key is not the certificate's")
	}
	for _, host := range []string{"127.0.0.1", "hub.example.com"} {
		kit.Must(t, cert.VerifyHostname(host))
	}
	kit.Must(t, cert.CheckSignatureFrom(ca.Cert))
	if cert.CheckSignatureFrom(other.Cert) == nil || other.Cert.SerialNumber.Cmp(ca.Cert.SerialNumber) == 0 {
		t.Error("two authorities are one")
	}
}

func TestParse_RefusesOtherBlocks(t *testing.T) {
	key, err := mint.NewKey()
	kit.Must(t, err)
	data, err := mint.EncodeKey(key)
	kit.Must(t, err)
	if _, err := mint.ParseCertificate(data); err == nil {
		t.Error("a key was read as a certificate")
	}
	if _, err := mint.ParseKey(nil); err == nil {
		t.Error("nothing was read as a key")
	}
}
