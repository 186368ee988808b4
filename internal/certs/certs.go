// Package certs is the TLS side of our own listeners: TLS 1.3, with files that are read again for each connection, so that
// rotation needs no restart; and a metric of when certificates end.
//
// Two files cannot be replaced at once. While they do not fit each other, or one cannot be read, what was read last still
// serves.
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
	// CertFile and KeyFile are what it shows.
	CertFile, KeyFile string
	// ClientCAFile are the authorities of its clients; "": they are not asked for certificates.
	ClientCAFile string
	// Auth says what is asked of clients where there is a ClientCAFile.
	Auth tls.ClientAuthType
	// Protocols are what is spoken over TLS, the preferred one first; none: nothing is said about it.
	Protocols []string
}

// Config reads the files, and returns a configuration that reads them again for each connection.
func (l Listener) Config() (*tls.Config, error) {
	r := &fileReader{files: l}
	if _, err := r.loadConfig(); err != nil {
		return nil, err // now, and not at the first connection
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: l.Protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return r.currentConfig() },
	}, nil
}

// fileReader remembers what was read last.
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
	c := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair}, NextProtos: l.Protocols}
	if l.ClientCAFile == "" {
		return c, nil
	}
	if c.ClientCAs, err = LoadPool(l.ClientCAFile); err != nil {
		return nil, err
	}
	c.ClientAuth = l.Auth
	return c, nil
}

// LoadPool reads a file of authorities.
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

// Expiry is the metric frond_certificate_expiry_seconds: when each certificate ends, by the clock of the certificates and not
// of this machine. What cannot be read is not shown.
type Expiry struct {
	metric *prometheus.Desc
	ends   map[string]func() (time.Time, error)
}

// NewExpiry makes the metric of some certificates by name.
func NewExpiry(ends map[string]func() (time.Time, error)) *Expiry {
	return &Expiry{ends: ends, metric: prometheus.NewDesc("frond_certificate_expiry_seconds",
		"When a certificate that this process shows or trusts ends, as Unix time; of several authorities in one file the first.",
		[]string{"certificate"}, nil)}
}

// FileExpiry tells when the first certificate of a file ends.
func FileExpiry(file string) func() (time.Time, error) {
	return func() (time.Time, error) {
		cert, err := ReadCertificate(file)
		if err != nil {
			return time.Time{}, err
		}
		return cert.NotAfter, nil
	}
}

// FileExpiries is File for each that has a name; "" is left out.
func FileExpiries(files map[string]string) map[string]func() (time.Time, error) {
	ends := map[string]func() (time.Time, error){}
	for name, file := range files {
		if file != "" {
			ends[name] = FileExpiry(file)
		}
	}
	return ends
}

// Describe is prometheus.Collector's.
func (e *Expiry) Describe(to chan<- *prometheus.Desc) { to <- e.metric }

// Collect is prometheus.Collector's.
func (e *Expiry) Collect(to chan<- prometheus.Metric) {
	for name, end := range e.ends {
		if at, err := end(); err == nil {
			to <- prometheus.MustNewConstMetric(e.metric, prometheus.GaugeValue, float64(at.Unix()), name)
		}
	}
}
