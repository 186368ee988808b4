package enrol

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

// fetchChainTimeout bounds a look at a hub's certificates.
const fetchChainTimeout = 10 * time.Second

// KeyHash is the hash of a certificate's public key.
func KeyHash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return identity.HashPrefix + hex.EncodeToString(sum[:])
}

// A CAError says that a server was found, and that it is not the one that was meant.
type CAError struct {
	Hub string
	// Want is the hash that was given, Seen those of the CAs that the server showed.
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

// fetchChain returns the certificates that a hub shows, and sends it nothing but a TLS hello: the handshake trusts nobody, so it fails,
// and what failed carries the chain.
func fetchChain(ctx context.Context, hub string, proxy func(*url.URL) (*url.URL, error)) ([]*x509.Certificate, error) {
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
		return nil, fmt.Errorf("look at %s: %w", host, err)
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

// findPinnedCA finds the CA with one of the hashes in a chain.
func findPinnedCA(chain []*x509.Certificate, hub string, hashes []string) (*x509.Certificate, error) {
	wrong := &CAError{Hub: hub, Want: hashes}
	for _, cert := range slices.Backward(chain) { // the authority's own is the last; before it, one may vouch for it
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

// A ClockError says that a hub's certificate is good at another time than the gateway's.
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

// verifyChainTime judges a chain against roots: it returns now, or the beginning of the chain when now is before it, which is then the
// least that it can be, as one of the roots has signed it.
func verifyChainTime(chain []*x509.Certificate, roots *x509.CertPool, hub string, now time.Time, corrected bool) (time.Time, error) {
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

// newCertPool reads certificates; it is nil for none.
func newCertPool(pemText []byte) *x509.CertPool {
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(pemText) {
		return nil
	}
	return p
}

func encodeCert(cert *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
}

// parseCerts reads certificates.
func parseCerts(text []byte) ([]*x509.Certificate, error) {
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

func readCertPool(path string) (*x509.CertPool, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the hub's CA: %w", err)
	}
	if p := newCertPool(data); p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s holds no certificate", path)
}

// CheckHub looks whether a hub is there and is the right one. It sends nothing but a TLS hello, and writes nothing.
func CheckHub(ctx context.Context, hub string, hashes []string, proxy func(*url.URL) (*url.URL, error)) error {
	chain, err := fetchChain(ctx, hub, proxy)
	if err == nil {
		_, err = findPinnedCA(chain, hub, hashes)
	}
	return err
}
