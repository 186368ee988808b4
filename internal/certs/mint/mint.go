// Package mint makes keys, serial numbers and X.509 certificates, and encodes them in PEM.
//
// Keys are ECDSA P-256 in PKCS #8. What a certificate says, and when a new one is due, is up to the caller.
package mint

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
)

// The types of PEM blocks.
const (
	typeCertificate = "CERTIFICATE"
	typeKey         = "PRIVATE KEY"
)

// NewKey makes a private key.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	return key, nil
}

// serialBits keep a serial number positive and below the 20 bytes that RFC 5280 allows.
const serialBits = 127

// NewSerial chooses a serial number. All have the same length.
func NewSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, fmt.Errorf("choose serial number: %w", err)
	}
	return serial.SetBit(serial, serialBits-1, 1), nil
}

// AddHosts adds IP addresses and DNS names to a template.
func AddHosts(template *x509.Certificate, hosts []string) {
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
}

// Authority signs certificates.
type Authority struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// NewAuthority makes an authority with a new key that signs its own certificate.
func NewAuthority(template x509.Certificate) (*Authority, error) {
	template.IsCA, template.BasicConstraintsValid = true, true
	return SelfSign(template)
}

// SelfSign makes a certificate that its own new key signs.
func SelfSign(template x509.Certificate) (*Authority, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	der, err := (&Authority{Cert: &template, Key: key}).Sign(template, key.Public())
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", template.Subject.CommonName, err)
	}
	return &Authority{Cert: cert, Key: key}, nil
}

// PEM returns the authority's own certificate and its key.
func (a *Authority) PEM() (cert, key []byte, err error) {
	key, err = EncodeKey(a.Key)
	return EncodeCertificate(a.Cert.Raw), key, err
}

// Sign signs a certificate for a public key and returns it in DER. A template without a serial number gets one.
func (a *Authority) Sign(template x509.Certificate, public crypto.PublicKey) ([]byte, error) {
	if template.SerialNumber == nil {
		serial, err := NewSerial()
		if err != nil {
			return nil, err
		}
		template.SerialNumber = serial
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, a.Cert, public, a.Key)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", template.Subject.CommonName, err)
	}
	return der, nil
}

// Issue signs a certificate for a new key.
func (a *Authority) Issue(template x509.Certificate) (der []byte, key *ecdsa.PrivateKey, err error) {
	if key, err = NewKey(); err != nil {
		return nil, nil, err
	}
	der, err = a.Sign(template, key.Public())
	return der, key, err
}

// EncodeCertificate encodes a certificate from DER to PEM.
func EncodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: typeCertificate, Bytes: der})
}

// EncodeKey encodes a private key in PEM.
func EncodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: typeKey, Bytes: der}), nil
}

// ParseCertificate reads the first certificate of a file in PEM.
func ParseCertificate(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != typeCertificate {
		return nil, errors.New("it holds no certificate in PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}

// ParseKey reads an ECDSA key from PEM.
func ParseKey(data []byte) (*ecdsa.PrivateKey, error) {
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
