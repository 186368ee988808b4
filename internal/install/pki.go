package install

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
	authorityLife = 10 * 365 * day
	leafLife      = 365 * day
	// clockSkew tolerates machines whose clock is behind the one that signs.
	clockSkew = time.Hour
	day       = 24 * time.Hour

	// renewShare is the divisor of a certificate's lifetime: with less than that share left, the next run issues it again.
	renewShare = 3
)

// certSubject is the subject of a certificate. With hosts it is valid for servers; without, for clients only.
type certSubject struct {
	name  string
	hosts []string
}

// signingAuthority is a certificate authority with its key.
type signingAuthority struct {
	mint.Authority
	pem []byte
	// crossSigned are certificates by which earlier CAs sign this one; see crossSign.
	crossSigned []byte
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

// newKey makes a private key, also in PEM.
func newKey() (crypto.Signer, []byte, error) {
	key, err := mint.NewKey()
	if err != nil {
		return nil, nil, err
	}
	data, err := mint.EncodeKey(key)
	return key, data, err
}

// signAuthority makes the self-signed certificate of a CA. Each has a unique name, so that a client does not take a new one for
// an old one.
func signAuthority(key crypto.Signer, now time.Time) ([]byte, error) {
	serial, err := mint.NewSerial()
	if err != nil {
		return nil, err
	}
	template := x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "frond-ca-" + serial.Text(16)[:8]},
		NotBefore:             now.Add(-clockSkew),
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
func (a signingAuthority) crossSign(next *x509.Certificate) ([]byte, error) {
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

// crossSignFiles is crossSign for files.
func crossSignFiles(file string, before, key, next []byte) ([]byte, error) {
	a, err := readAuthority(file, before, key)
	if err != nil {
		return nil, err
	}
	cert, err := mint.ParseCertificate(next)
	if err != nil {
		return nil, err
	}
	return a.crossSign(cert)
}

// dropExpired returns the certificates that are still valid.
func dropExpired(certs []byte, now time.Time) (good []byte) {
	for block, rest := pem.Decode(certs); block != nil; block, rest = pem.Decode(rest) {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && now.Before(cert.NotAfter) {
			good = append(good, pem.EncodeToMemory(block)...)
		}
	}
	return good
}

// chainTail is what is served after each certificate: it ends with the CA's own, so that a client that knows only its hash can compare.
func (a signingAuthority) chainTail() []byte { return slices.Concat(a.crossSigned, a.pem) }

// issueCertificate signs a certificate, and returns it with the CA's chain tail.
func (a signingAuthority) issueCertificate(s certSubject, public crypto.PublicKey, now time.Time) ([]byte, error) {
	template := x509.Certificate{
		Subject:     pkix.Name{CommonName: s.name},
		NotBefore:   now.Add(-clockSkew),
		NotAfter:    now.Add(leafLife),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, // servers too: they call each other
	}
	if template.NotAfter.After(a.Cert.NotAfter) {
		template.NotAfter = a.Cert.NotAfter
	}
	mint.AddHosts(&template, s.hosts)
	if len(s.hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := a.Sign(template, public)
	if err != nil {
		return nil, err
	}
	return append(mint.EncodeCertificate(der), a.chainTail()...), nil
}

// renewReason says why a certificate must be issued again; "" if it is good.
func (a signingAuthority) renewReason(chain []byte, s certSubject, public crypto.PublicKey, now time.Time) string {
	cert, err := mint.ParseCertificate(chain)
	if err != nil {
		return "it could not be read"
	}
	own, ok := cert.PublicKey.(*ecdsa.PublicKey)
	names := slices.Clone(cert.DNSNames)
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	want := slices.Clone(s.hosts)
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
