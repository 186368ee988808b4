package kubetest

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/frond-edge/frond/internal/certs/mint"
)

// testCA is the cluster's certificate authority, held in memory; writeFiles writes the components' files.
type testCA struct {
	signer *mint.Authority
	caPEM  []byte
}

// certLifetime is the lifetime of a test's certificates.
const certLifetime = 7 * 24 * time.Hour

func newTestCA() (*testCA, error) {
	signer, err := mint.NewAuthority(x509.Certificate{
		Subject:   pkix.Name{CommonName: "kubetest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(certLifetime),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	})
	if err != nil {
		return nil, fmt.Errorf("make the CA: %w", err)
	}
	return &testCA{signer: signer, caPEM: mint.EncodeCertificate(signer.Cert.Raw)}, nil
}

// clientCert makes a client certificate. It panics only if the system's random source fails.
func (p *testCA) clientCert(user string, groups []string) (certPEM, keyPEM []byte) {
	return p.signCert(x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

func (p *testCA) serverCert() (certPEM, keyPEM []byte) {
	return p.signCert(x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)},
	})
}

func (p *testCA) signCert(template x509.Certificate) (certPEM, keyPEM []byte) {
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(certLifetime)
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, key, err := p.signer.Issue(template)
	if err != nil {
		panic(err)
	}
	if keyPEM, err = mint.EncodeKey(key); err != nil {
		panic(err)
	}
	return mint.EncodeCertificate(der), keyPEM
}

// writeFiles writes the files of the components into dir: ca.crt, apiserver.crt and .key, and the service accounts' key pair.
func (p *testCA) writeFiles(dir string) error {
	sa, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("make the service accounts' key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(sa.Public())
	if err != nil {
		return fmt.Errorf("encode the service accounts' key: %w", err)
	}
	cert, key := p.serverCert()
	for name, data := range map[string][]byte{
		"ca.crt": p.caPEM, "apiserver.crt": cert, "apiserver.key": key,
		"sa.key": encodePEM("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(sa)), "sa.pub": encodePEM("PUBLIC KEY", public),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
