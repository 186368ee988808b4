// Package pki makes the certificates and keys of a development cluster's Kubernetes, as an installer of Kubernetes would. Those
// of Frond are made by internal/install.
//
// It owns the two files of each pair and never overwrites one: an existing authority is read again, so a
// cluster keeps its identities over restarts. Keys are ECDSA P-256, PEM encoded, readable by their owner only.
// Certificates are valid for ten years: a development cluster has no renewal.
package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/renameio/v2"

	"github.com/frond-edge/frond/internal/certs/mint"
)

const (
	certLifetime = 10 * 365 * 24 * time.Hour
	// clockSkew tolerates a clock that is slightly behind, on another machine or after a reboot.
	clockSkew = time.Hour
	// rsaBits is what Kubernetes uses for its service account keys.
	rsaBits = 2048
)

// Pair names the files of a certificate and its key.
type Pair struct{ Cert, Key string }

// pairIn returns the files of the pair called name in folder dir.
func pairIn(dir, name string) Pair {
	return Pair{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
}

// Authority is a certificate authority with its key.
type Authority struct {
	Pair
	dir    string
	signer *mint.Authority
}

// Subject is the subject of a certificate. With Hosts it is a server and client certificate, without a client certificate only.
type Subject struct {
	// Name is the common name: a user to Kubernetes.
	Name string
	// Groups become the organisations: groups to Kubernetes.
	Groups []string
	// Hosts are the IP addresses and DNS names of a server.
	Hosts []string
}

// NewAuthority reads the authority called name in folder dir, or makes it.
func NewAuthority(dir, name string) (*Authority, error) {
	a := &Authority{Pair: pairIn(dir, name), dir: dir}
	cert, key, err := a.load()
	switch {
	case err == nil:
		a.signer = &mint.Authority{Cert: cert, Key: key}
		return a, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read authority %s: %w", name, err)
	}
	template := newTemplate(Subject{Name: name})
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = nil
	if a.signer, err = mint.NewAuthority(template); err != nil {
		return nil, fmt.Errorf("make authority %s: %w", name, err)
	}
	return a, a.save(a.signer.Cert.Raw, a.signer.Key)
}

// Issue makes the certificate called name in the authority's folder unless it exists.
func (a *Authority) Issue(name string, s Subject) (Pair, error) { return a.IssueIn(a.dir, name, s) }

// coversHosts reports whether the certificate in file exists and has all of these names.
func coversHosts(file string, hosts []string) bool {
	data, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	cert, err := mint.ParseCertificate(data)
	return err == nil && !slices.ContainsFunc(hosts, func(host string) bool { return cert.VerifyHostname(host) != nil })
}

// IssueIn is Issue for another folder.
func (a *Authority) IssueIn(dir, name string, s Subject) (Pair, error) {
	p := pairIn(dir, name)
	if fileExists(p.Key) && coversHosts(p.Cert, s.Hosts) {
		return p, nil
	}
	der, key, err := a.signer.Issue(newTemplate(s))
	if err != nil {
		return p, fmt.Errorf("issue %s: %w", name, err)
	}
	return p, p.save(der, key)
}

// SigningKeys makes an RSA key pair name.key and name.pub, as kube-apiserver requires for service account tokens.
func SigningKeys(dir, name string) (private, public string, err error) {
	private, public = filepath.Join(dir, name+".key"), filepath.Join(dir, name+".pub")
	if fileExists(private) && fileExists(public) {
		return private, public, nil
	}
	key, err := rsa.GenerateKey(rand.Reader, rsaBits)
	if err != nil {
		return "", "", fmt.Errorf("make key %s: %w", name, err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", "", fmt.Errorf("encode public key %s: %w", name, err)
	}
	if err := writeKey(private, key); err != nil {
		return "", "", err
	}
	return private, public, writePEM(public, "PUBLIC KEY", der, 0o644)
}

func newTemplate(s Subject) x509.Certificate {
	now := time.Now()
	t := x509.Certificate{
		Subject:     pkix.Name{CommonName: s.Name, Organization: s.Groups},
		NotBefore:   now.Add(-clockSkew),
		NotAfter:    now.Add(certLifetime),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	mint.AddHosts(&t, s.Hosts)
	if len(s.Hosts) > 0 {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return t
}

func (p Pair) save(der []byte, key crypto.Signer) error {
	if err := writeKey(p.Key, key); err != nil {
		return err
	}
	return writePEM(p.Cert, "CERTIFICATE", der, 0o644) // last: the certificate marks the pair as complete
}

func (p Pair) load() (*x509.Certificate, crypto.Signer, error) {
	certDER, err := readPEM(p.Cert)
	if err != nil {
		return nil, nil, err
	}
	keyDER, err := readPEM(p.Key)
	if err != nil {
		return nil, nil, err
	}
	cert, err := x509.ParseCertificate(certDER)
	if err != nil {
		return nil, nil, fmt.Errorf("parse %s: %w", p.Cert, err)
	}
	key, err := x509.ParsePKCS8PrivateKey(keyDER)
	if err != nil {
		return nil, nil, fmt.Errorf("parse %s: %w", p.Key, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("parse %s: %T cannot sign", p.Key, key)
	}
	return cert, signer, nil
}

func writeKey(path string, key crypto.Signer) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode key %s: %w", path, err)
	}
	return writePEM(path, "PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make folder of %s: %w", path, err)
	}
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := renameio.WriteFile(path, data, mode); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

func readPEM(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s holds no PEM block", path)
	}
	return block.Bytes, nil
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
