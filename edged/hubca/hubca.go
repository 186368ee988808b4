// Package hubca finds the CA of a hub by its hash, and checks hubs against it before anything is sent to them.
package hubca

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/frond-edge/frond/api/identity"
)

// fetchChainTimeout limits one read of a hub's certificates.
const fetchChainTimeout = 10 * time.Second

// KeyHash returns the hash of a certificate's public key.
func KeyHash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return identity.HashPrefix + hex.EncodeToString(sum[:])
}

// A CAError reports that the server that answered is not the intended one.
type CAError struct {
	Hub string
	// Want holds the configured hashes, Seen those of the CAs that the server presented.
	Want, Seen []string
}

func (e *CAError) Error() string {
	seen := "it shows no CA at all"
	if len(e.Seen) > 0 {
		seen = "its CA has " + strings.Join(e.Seen, ", ")
	}
	return fmt.Sprintf("%s is not the hub you mean: %s, and the hash you gave is %s. Nothing was sent to it. Compare the hash with the "+
		"one that frond token create prints; if it is right, something between here and the hub answers in its place", e.Hub, seen, strings.Join(e.Want, ", "))
}

// FetchChain returns the certificates that a hub presents, and sends it only a TLS hello: the handshake trusts no CA, so it
// fails, and its error carries the chain.
func FetchChain(ctx context.Context, hub string, proxy func(*url.URL) (*url.URL, error)) ([]*x509.Certificate, error) {
	u, err := url.Parse(hub)
	if err != nil {
		return nil, errors.New("the hub's URL is none")
	}
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()},
		DisableKeepAlives: true,
	}
	if proxy != nil {
		transport.Proxy = func(*http.Request) (*url.URL, error) { return proxy(u) }
	}
	host := u.Host
	if u.Port() == "" {
		host = net.JoinHostPort(u.Hostname(), "443")
	}
	ctx, cancel := context.WithTimeout(ctx, fetchChainTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host, nil)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", host, err)
	}
	response, err := transport.RoundTrip(request)
	if err == nil {
		_ = response.Body.Close()
		return nil, errors.New("a handshake that trusts nobody has succeeded") // cannot be
	}
	if failed, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return failed.UnverifiedCertificates, nil
	}
	return nil, fmt.Errorf("reach %s: %w", host, err)
}

// FindPinned returns the CA with one of the hashes in a chain.
func FindPinned(chain []*x509.Certificate, hub string, hashes []string) (*x509.Certificate, error) {
	wrong := &CAError{Hub: hub, Want: hashes}
	for _, cert := range slices.Backward(chain) { // the root is last; another CA before it may certify it
		if !cert.IsCA {
			continue
		}
		if slices.ContainsFunc(hashes, func(h string) bool { return strings.EqualFold(h, KeyHash(cert)) }) {
			return cert, nil
		}
		wrong.Seen = append(wrong.Seen, KeyHash(cert))
	}
	return nil, wrong
}

// A ClockError reports that a hub's certificate is not valid at the gateway's time.
type ClockError struct {
	Hub       string
	From, To  time.Time
	Now       time.Time
	Corrected bool // Now is not the machine's clock
}

func (e *ClockError) Error() string {
	clock := "this machine's clock says"
	if e.Corrected {
		clock = "by the last word of the cloud it is at least"
	}
	return fmt.Sprintf("the certificate of %s is good from %s to %s, and %s %s: set the clock, or renew the hub's certificate if that is what is old",
		e.Hub, e.From.UTC().Format(time.RFC3339), e.To.UTC().Format(time.RFC3339), clock, e.Now.UTC().Format(time.RFC3339))
}

// VerifyAt verifies a chain against roots. It returns now. If now is before the chain's validity it returns the
// start of that: the least possible time, as one of the roots has signed it.
func VerifyAt(chain []*x509.Certificate, roots *x509.CertPool, hub string, now time.Time, corrected bool) (time.Time, error) {
	if len(chain) == 0 {
		return now, fmt.Errorf("%s shows no certificate", hub)
	}
	leaf := chain[0]
	if now.Before(leaf.NotBefore) {
		now = leaf.NotBefore.Add(time.Second)
	}
	if now.After(leaf.NotAfter) {
		return now, &ClockError{Hub: hub, From: leaf.NotBefore, To: leaf.NotAfter, Now: now, Corrected: corrected}
	}
	between := x509.NewCertPool()
	for _, cert := range chain[1:] {
		between.AddCert(cert)
	}
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now})
	if err != nil {
		return now, fmt.Errorf("the certificate of %s: %w", hub, err)
	}
	return now, nil
}

// NewPool parses certificates into a pool; nil for none.
func NewPool(pemText []byte) *x509.CertPool {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pemText) {
		return nil
	}
	return p
}

// EncodeCert returns a certificate in PEM.
func EncodeCert(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

// ParseCerts parses PEM certificates.
func ParseCerts(text []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for {
		block, rest := pem.Decode(text)
		if block == nil {
			return all, nil
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
		all, text = append(all, cert), rest
	}
}

// ReadPool reads the certificates of a file into a pool.
func ReadPool(path string) (*x509.CertPool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the hub's CA: %w", err)
	}
	if p := NewPool(data); p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s holds no certificate", path)
}

// CheckHub checks whether a hub answers and is the intended one. It sends only a TLS hello, and writes nothing.
func CheckHub(ctx context.Context, hub string, hashes []string, proxy func(*url.URL) (*url.URL, error)) error {
	chain, err := FetchChain(ctx, hub, proxy)
	if err == nil {
		_, err = FindPinned(chain, hub, hashes)
	}
	return err
}
