// Package pki makes and reads the certificate authorities and certificates of an installation, and says when they are renewed.
package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	"github.com/frond-edge/frond/internal/certs/mint"
)

const (
	// authorityLife is long, because gateways must learn of the next CA before this one expires. leafLife is short enough that
	// a lost key expires, and long enough for an administrator who checks the cluster once a year.
	authorityLife = 10 * 365 * Day
	leafLife      = 365 * Day
	// ClockSkew tolerates machines whose clock is behind the one that signs.
	ClockSkew = time.Hour
	// Day is 24 hours.
	Day = 24 * time.Hour

	// renewShare is the divisor of a certificate's lifetime: with less than that share left, the next run issues it again.
	renewShare = 3
)

// Subject is the subject of a certificate. With hosts it is valid for servers; without, for clients only.
type Subject struct {
	Name  string
	Hosts []string
}

// Authority is a certificate authority with its key.
type Authority struct {
	mint.Authority
	PEM []byte
	// CrossSigned are certificates by which earlier CAs sign this one; see crossSign.
	CrossSigned []byte
}

// CAHash returns the name of a CA as kubeadm has it: "sha256:" and the hash of its public key. pem is its certificate, or
// several, of which the first counts.
func CAHash(pem []byte) (string, error) {
	cert, err := mint.ParseCertificate(pem)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// NewKey makes a private key, also in PEM.
func NewKey() (crypto.Signer, []byte, error) {
	key, err := mint.NewKey()
	if err != nil {
		return nil, nil, err
	}
	data, err := mint.EncodeKey(key)
	return key, data, err
}

// Sign makes the self-signed certificate of a CA. Each has a unique name, so that a client does not take a new one for
// an old one.
func Sign(key crypto.Signer, now time.Time) ([]byte, error) {
	serial, err := mint.NewSerial()
	if err != nil {
		return nil, err
	}
	template := x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "frond-ca-" + serial.Text(16)[:8]},
		NotBefore:             now.Add(-ClockSkew),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true, // without a path length: crossSign puts the next CA below it
		IsCA:                  true,
	}
	der, err := (&mint.Authority{Cert: &template, Key: key}).Sign(template, key.Public())
	if err != nil {
		return nil, fmt.Errorf("sign authority: %w", err)
	}
	return mint.EncodeCertificate(der), nil
}

// crossSign makes the certificate by which a CA signs the next one. A client that was offline during the change trusts only the former
// CA; it accepts the next one when it is served with this certificate. It grants nothing that the former could not sign anyway. A CA
// with a path length cannot cross-sign; crossSign then returns nil.
func (a Authority) crossSign(next *x509.Certificate) ([]byte, error) {
	if a.Cert.MaxPathLenZero {
		return nil, nil
	}
	template := x509.Certificate{
		Subject: next.Subject, SubjectKeyId: next.SubjectKeyId,
		NotBefore: next.NotBefore, NotAfter: a.Cert.NotAfter, KeyUsage: next.KeyUsage, BasicConstraintsValid: true, IsCA: true,
	}
	if template.NotAfter.After(next.NotAfter) {
		template.NotAfter = next.NotAfter
	}
	der, err := a.Sign(template, next.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("vouch for the next authority: %w", err)
	}
	return mint.EncodeCertificate(der), nil
}

// CrossSign is crossSign for files; file names the signing CA in errors.
func CrossSign(file string, before, key, next []byte) ([]byte, error) {
	a, err := Read(file, before, key)
	if err != nil {
		return nil, err
	}
	cert, err := mint.ParseCertificate(next)
	if err != nil {
		return nil, err
	}
	return a.crossSign(cert)
}

// DropExpired returns the certificates that are still valid.
func DropExpired(certs []byte, now time.Time) (good []byte) {
	for block, rest := pem.Decode(certs); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && now.Before(cert.NotAfter) {
			good = append(good, pem.EncodeToMemory(block)...)
		}
	}
	return good
}

// chainTail is what is served after each certificate: it ends with the CA's own, so that a client that knows only its hash can compare.
func (a Authority) chainTail() []byte { return slices.Concat(a.CrossSigned, a.PEM) }

// Issue signs a certificate, and returns it with the CA's chain tail.
func (a Authority) Issue(s Subject, public crypto.PublicKey, now time.Time) ([]byte, error) {
	template := x509.Certificate{
		Subject:     pkix.Name{CommonName: s.Name},
		NotBefore:   now.Add(-ClockSkew),
		NotAfter:    now.Add(leafLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, // servers too: they call each other
	}
	if template.NotAfter.After(a.Cert.NotAfter) {
		template.NotAfter = a.Cert.NotAfter
	}
	mint.AddHosts(&template, s.Hosts)
	if len(s.Hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := a.Sign(template, public)
	if err != nil {
		return nil, err
	}
	return append(mint.EncodeCertificate(der), a.chainTail()...), nil
}

// RenewReason says why a certificate must be issued again; "" if it is good.
func (a Authority) RenewReason(chain []byte, s Subject, public crypto.PublicKey, now time.Time) string {
	cert, err := mint.ParseCertificate(chain)
	if err != nil {
		return "it could not be read"
	}
	own, ok := cert.PublicKey.(*ecdsa.PublicKey)
	names := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	want := slices.Clone(s.Hosts)
	slices.Sort(names)
	slices.Sort(want)
	switch left, life := cert.NotAfter.Sub(now), cert.NotAfter.Sub(cert.NotBefore); {
	case cert.CheckSignatureFrom(a.Cert) != nil || !bytes.HasSuffix(chain, a.chainTail()):
		return "the authority is another one"
	case !ok || !own.Equal(public):
		return "its key is another one"
	case left <= 0:
		return "it ended on " + cert.NotAfter.UTC().Format(time.DateOnly)
	case left < life/renewShare && cert.NotAfter.Before(a.Cert.NotAfter):
		return "it ends on " + cert.NotAfter.UTC().Format(time.DateOnly)
	case !slices.Equal(names, want):
		return "its names changed"
	}
	return ""
}

// Read reads a CA and its key; the errors name the CA's file.
func Read(file string, certPEM, keyPEM []byte) (Authority, error) {
	cert, err := mint.ParseCertificate(certPEM)
	if err != nil {
		return Authority{}, fmt.Errorf("read %s: %w", file, err)
	}
	key, err := mint.ParseKey(keyPEM)
	if err != nil {
		return Authority{}, fmt.Errorf("read the key of %s: %w", file, err)
	}
	if own, ok := cert.PublicKey.(*ecdsa.PublicKey); !ok || !own.Equal(key.Public()) {
		return Authority{}, fmt.Errorf("%s and its key do not belong together: put both back from one backup", file)
	}
	return Authority{Authority: mint.Authority{Cert: cert, Key: key}, PEM: certPEM}, nil
}
