// Package certs configures TLS for Frond's own listeners, 1.3 unless older clients need 1.2. It reads certificate files again for each connection, so that
// rotation needs no restart. It also exports a metric of the expiry of certificates.
//
// Two files cannot be replaced at once. While certificate and key do not match, or a file cannot be read, the last valid ones
// are served.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Listener names the files of a listener.
type Listener struct {
	// CertFile and KeyFile are the server's certificate and key.
	CertFile, KeyFile string
	// ClientCAFile has the CAs of its clients; "" means that clients need no certificates.
	ClientCAFile string
	// Auth is the policy for client certificates where there is a ClientCAFile.
	Auth tls.ClientAuthType
	// AllowTLS12 takes TLS 1.2, too, for clients that are not Frond's own.
	AllowTLS12 bool
	// Protocols are the ALPN protocols, the preferred one first; none disables ALPN.
	Protocols []string
}

// Config reads the files, and returns a configuration that reads them again for each connection.
func (l Listener) Config() (*tls.Config, error) {
	r := &fileReader{files: l}
	if _, err := r.loadConfig(); err != nil {
		return nil, err // now, and not at the first connection
	}
	return l.allow12(&tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: l.Protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.currentConfig() },
	}), nil
}

func (l Listener) allow12(c *tls.Config) *tls.Config {
	if l.AllowTLS12 {
		c.MinVersion = tls.VersionTLS12
	}
	return c
}

// fileReader caches the last valid files.
type fileReader struct {
	files Listener

	mu   sync.Mutex
	last *tls.Config // guarded by mu
}

func (r *fileReader) currentConfig() (*tls.Config, error) {
	now, err := r.loadConfig()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.last = now
	}
	if r.last == nil {
		return nil, err
	}
	return r.last, nil
}

func (r *fileReader) loadConfig() (*tls.Config, error) {
	l := r.files
	pair, err := tls.LoadX509KeyPair(l.CertFile, l.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	c := l.allow12(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: l.Protocols})
	if l.ClientCAFile == "" {
		return c, nil
	}
	if c.ClientCAs, err = LoadPool(l.ClientCAFile); err != nil {
		return nil, err
	}
	c.ClientAuth = l.Auth
	return c, nil
}

// LoadPool reads a file of CA certificates.
func LoadPool(file string) (*x509.CertPool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read authorities: %w", err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(data) {
		return nil, fmt.Errorf("read authorities: no certificate in %s", file)
	}
	return p, nil
}

// ReadCertificate returns the first certificate of a file.
func ReadCertificate(file string) (*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type == "CERTIFICATE" {
			return x509.ParseCertificate(block.Bytes)
		}
	}
	return nil, errors.New("no certificate in " + file)
}

// Expiry is the metric frond_certificate_expiry_seconds: the expiry time in each certificate, independent of the clock
// of this machine. Unreadable certificates are omitted.
type Expiry struct {
	metric *prometheus.Desc
	ends   map[string]func() (time.Time, error)
}

// NewExpiry makes the metric of the named certificates.
func NewExpiry(ends map[string]func() (time.Time, error)) *Expiry {
	return &Expiry{ends: ends, metric: prometheus.NewDesc("frond_certificate_expiry_seconds",
		"When a certificate that this process shows or trusts ends, as Unix time; of several authorities in one file the first.",
		[]string{"certificate"}, nil)}
}

// FileExpiry returns a function that reads the expiry of the first certificate of a file.
func FileExpiry(file string) func() (time.Time, error) {
	return func() (time.Time, error) {
		cert, err := ReadCertificate(file)
		if err != nil {
			return time.Time{}, err
		}
		return cert.NotAfter, nil
	}
}

// FileExpiries is FileExpiry for each file that has a name; "" is omitted.
func FileExpiries(files map[string]string) map[string]func() (time.Time, error) {
	ends := map[string]func() (time.Time, error){}
	for name, file := range files {
		if file != "" {
			ends[name] = FileExpiry(file)
		}
	}
	return ends
}

// Describe implements prometheus.Collector.
func (e *Expiry) Describe(to chan<- *prometheus.Desc) { to <- e.metric }

// Collect implements prometheus.Collector.
func (e *Expiry) Collect(to chan<- prometheus.Metric) {
	for name, end := range e.ends {
		if at, err := end(); err == nil {
			to <- prometheus.MustNewConstMetric(e.metric, prometheus.GaugeValue, float64(at.Unix()), name)
		}
	}
}
