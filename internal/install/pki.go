package install

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"
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

	typeCertificate = "CERTIFICATE"
	typeKey         = "PRIVATE KEY"
)

// certSubject is the subject of a certificate. With hosts it is valid for servers; without, for clients only.
type certSubject struct {
	name  string
	hosts []string
}

// signingAuthority is a certificate authority with its key.
type signingAuthority struct {
	cert *x509.Certificate
	pem  []byte
	key  crypto.Signer
	// crossSigned are certificates by which earlier CAs sign this one; see crossSign.
	crossSigned []byte
}

// CAHash returns the name of a CA as kubeadm has it: "sha256:" and the hash of its public key. pem is its certificate, or
// several, of which the first counts.
func CAHash(pem []byte) (string, error) {
	cert, err := parseCertificate(pem)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// newKey makes a private key.
func newKey() (crypto.Signer, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: typeKey, Bytes: der}), nil
}

// signAuthority makes the self-signed certificate of a CA. Each has a unique name, so that a client does not take a new one for
// an old one.
func signAuthority(key crypto.Signer, now time.Time) ([]byte, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: "frond-ca-" + serial.Text(16)[:8]},
		NotBefore:             now.Add(-clockSkew),
		NotAfter:              now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true, // without a path length: crossSign puts the next CA below it
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: der}), nil
}

// crossSign makes the certificate by which a CA signs the next one. A client that was offline during the change trusts only the former
// CA; it accepts the next one when it is served with this certificate. It grants nothing that the former could not sign anyway. A CA
// with a path length cannot cross-sign; crossSign then returns nil.
func (a signingAuthority) crossSign(next *x509.Certificate) ([]byte, error) {
	if a.cert.MaxPathLenZero {
		return nil, nil
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: next.Subject, SubjectKeyId: next.SubjectKeyId,
		NotBefore: next.NotBefore, NotAfter: a.cert.NotAfter, KeyUsage: next.KeyUsage, BasicConstraintsValid: true, IsCA: true,
	}
	if template.NotAfter.After(next.NotAfter) {
		template.NotAfter = next.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, next.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("vouch for the next authority: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: der}), nil
}

// crossSignFiles is crossSign for files.
func crossSignFiles(before, key, next []byte) ([]byte, error) {
	a, err := readAuthority(before, key)
	if err != nil {
		return nil, err
	}
	cert, err := parseCertificate(next)
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
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: s.name},
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(leafLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, // servers too: they call each other
	}
	if template.NotAfter.After(a.cert.NotAfter) {
		template.NotAfter = a.cert.NotAfter
	}
	for _, h := range s.hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	if len(s.hosts) > 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", s.name, err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: der}), a.chainTail()...), nil
}

// renewReason says why a certificate must be issued again; "" if it is good.
func (a signingAuthority) renewReason(chain []byte, s certSubject, public crypto.PublicKey, now time.Time) string {
	cert, err := parseCertificate(chain)
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
	case cert.CheckSignatureFrom(a.cert) != nil || !bytes.HasSuffix(chain, a.chainTail()):
		return "the authority is another one"
	case !ok || !own.Equal(public):
		return "its key is another one"
	case left <= 0:
		return "it ended on " + cert.NotAfter.UTC().Format(time.DateOnly)
	case left < life/renewShare && cert.NotAfter.Before(a.cert.NotAfter):
		return "it ends on " + cert.NotAfter.UTC().Format(time.DateOnly)
	case !slices.Equal(names, want):
		return "its names changed"
	}
	return ""
}

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("choose serial number: %w", err)
	}
	return serial.SetBit(serial, 126, 1), nil // never short
}

// parseCertificate reads the first certificate.
func parseCertificate(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != typeCertificate {
		return nil, errors.New("it holds no certificate in PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

func parseKey(data []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != typeKey {
		return nil, errors.New("it holds no private key in PEM")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("it holds a %T, not an ECDSA key", key)
	}
	return signer, nil
}
