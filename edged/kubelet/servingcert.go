package kubelet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/certificate"
	"k8s.io/kubernetes/pkg/kubelet/server"
)

// LocalName is the server name for which the kubelet's port presents ServingCert.Local.
const LocalName = "kubelet.frond.internal"

// ServingCertConfig configures a ServingCert.
type ServingCertConfig struct {
	// Node is the name of the Node.
	Node string
	// Dir is the kubelet's folder; certificates are in its subfolder pki.
	Dir string
	// NodeNames returns the cloud's names of this node. A certificate is requested (signer kubernetes.io/kubelet-serving) when there
	// are names, when they change, and before it expires. It must not block, and returns the same order for the same names. nil: no
	// certificate is requested. Not used with Config.CertFile.
	NodeNames func() []string
	// Now returns the cloud's time, by which that certificate is renewed; nil is the machine's clock.
	Now func() time.Time
}

// ServingCert selects the certificate of the kubelet's port. It replaces the kubelet's own choice for three reasons: the
// cloud uses names of the node that the kubelet does not know; a certificate that expired while the gateway was offline is
// better than none; and programs of the gateway need one that does not depend on the cloud.
type ServingCert struct {
	cfg   ServingCertConfig
	local tls.Certificate
	log   *zap.Logger

	mu sync.Mutex
	// Guarded by mu: the files that Config or its drop-in names, and their last content.
	certFile, keyFile string
	lastShown         *tls.Certificate
	// Guarded by mu: the store and the manager of requested certificates; nil with files, and before the start.
	store   certificate.Store
	manager certificate.Manager
	// issued closes when a requested certificate has arrived; then it is replaced. Guarded by mu.
	issued chan struct{}
}

// NewServingCert returns the certificate of a kubelet's port. It requests and reads nothing until the kubelet starts.
func NewServingCert(cfg ServingCertConfig, log *zap.Logger) (*ServingCert, error) {
	local, err := selfSigned(LocalName)
	if err != nil {
		return nil, fmt.Errorf("make the kubelet's certificate for this machine: %w", err)
	}
	return &ServingCert{cfg: cfg, local: local, log: log.Named("edged"), issued: make(chan struct{})}, nil
}

// selfSigned returns a certificate that exists only in memory, as long as the process. Its dates do not matter: a clock
// without a battery may show any time.
func selfSigned(name string) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, err
	}
	leaf, err := x509.ParseCertificate(der)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, err
}

// tlsConfig returns the TLS configuration of the kubelet's port, from upstream's options. The kubelet's authenticator
// checks client certificates.
func (s *ServingCert) tlsConfig(o *server.TLSOptions) *tls.Config {
	s.mu.Lock()
	s.certFile, s.keyFile = o.CertFile, o.KeyFile
	s.mu.Unlock()
	c := &tls.Config{
		MinVersion: max(tls.VersionTLS13, o.MinVersion), CurvePreferences: o.CurvePreferences, // TLS 1.3 has no configurable suites
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if hello.ServerName == LocalName {
				return &s.local, nil
			}
			return s.currentCert(), nil
		},
	}
	if o.ClientCAFile != "" {
		c.ClientAuth = tls.RequestClientCert
		if named, err := certutil.NewPool(o.ClientCAFile); err == nil { // on an error the authenticator has reported it
			c.ClientCAs = named // tells clients which of their certificates is wanted
		}
	}
	return c
}

// Local is the certificate for callers that ask for LocalName, for the life of this process.
func (s *ServingCert) Local() *x509.Certificate { return s.local.Leaf }

// Current is the certificate for all other callers; nil before a requested one has arrived or files exist.
func (s *ServingCert) Current() *x509.Certificate {
	now := s.currentCert()
	if now == &s.local {
		return nil
	}
	return now.Leaf
}

// currentCert returns the best certificate: the requested one, even if it has expired; before there is one, the local one.
func (s *ServingCert) currentCert() *tls.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.certFile != "" {
		pair, err := tls.LoadX509KeyPair(s.certFile, s.keyFile)
		if err == nil {
			s.lastShown = &pair
		}
	} else if s.manager != nil {
		if now := s.manager.Current(); now != nil {
			return now
		}
		if expired, err := s.store.Current(); err == nil {
			s.lastShown = expired
		}
	}
	if s.lastShown != nil {
		return s.lastShown
	}
	return &s.local
}

// startRenewal starts to request certificates, unless there are files, and continues until ctx ends. Pods run as usual
// without a certificate, and without any place to store one.
func (s *ServingCert) startRenewal(ctx context.Context, kube kubernetes.Interface) {
	if !s.requestsCert() {
		return
	}
	dir := filepath.Join(s.cfg.Dir, "pki")
	manager, store, err := s.newManager(ctx, dir, kube)
	if err != nil {
		s.log.Error("no certificate for callers of the kubelet can be kept", zap.String("dir", dir), zap.Error(err))
		return
	}
	s.mu.Lock()
	s.manager, s.store = manager, store
	s.mu.Unlock()
	manager.Start()
}

// requestsCert reports whether certificates are requested, which is so without files.
func (s *ServingCert) requestsCert() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.certFile == "" && s.cfg.NodeNames != nil
}

// Await waits until callers from the cloud get a certificate that they can verify: a requested one that has not expired by the
// cloud's time. It does not wait with files, for which their owner is responsible, or if none is requested. The error is ctx's.
func (s *ServingCert) Await(ctx context.Context) error {
	for s.requestsCert() {
		s.mu.Lock()
		issued := s.issued
		s.mu.Unlock()
		if now := s.currentCert(); now != &s.local && s.cloudNow().Before(now.Leaf.NotAfter) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-issued:
		}
	}
	return nil
}

func (s *ServingCert) notifyIssued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.issued)
	s.issued = make(chan struct{})
}

// cloudNow returns the cloud's time, as far as it is known.
func (s *ServingCert) cloudNow() time.Time {
	if s.cfg.Now != nil {
		return s.cfg.Now()
	}
	return time.Now()
}

func (s *ServingCert) newManager(ctx context.Context, dir string, kube kubernetes.Interface) (certificate.Manager, certificate.Store, error) {
	const dirMode = 0o700
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return nil, nil, err
	}
	files, err := certificate.NewFileStore("kubelet-server", dir, dir, "", "")
	if err != nil {
		return nil, nil, err
	}
	store := &tolerantStore{Store: files, updated: s.notifyIssued}
	manager, err := certificate.NewManager(&certificate.Config{
		ClientsetFn:      func(*tls.Certificate) (kubernetes.Interface, error) { return kube, nil },
		GetTemplate:      func() *x509.CertificateRequest { return s.nextRequest(store.leaf.Load()) },
		SignerName:       certificatesv1.KubeletServingSignerName,
		GetUsages:        certificate.DefaultKubeletServingGetUsages,
		CertificateStore: store, Ctx: &ctx,
	})
	return manager, store, err
}

// renewShare is the part of a certificate's life, by the cloud's time, in which no other is requested. client-go requests
// one after 70 % at the earliest, by the machine's clock: a clock years ahead makes each certificate look expired, and
// client-go would request the next at once, without end.
const renewShare = 2.0 / 3

// nextRequest returns the next request; nil for none, as the node's names are not known yet or have is still good.
func (s *ServingCert) nextRequest(have *x509.Certificate) *x509.CertificateRequest {
	t := requestTemplate(s.cfg.Node, s.cfg.NodeNames())
	if t == nil || have == nil || !coversRequest(have, t) {
		return t
	}
	if life := have.NotAfter.Sub(have.NotBefore); s.cloudNow().Before(have.NotBefore.Add(time.Duration(float64(life) * renewShare))) {
		return nil
	}
	return t
}

// coversRequest reports whether a certificate covers all names of a request.
func coversRequest(have *x509.Certificate, t *x509.CertificateRequest) bool {
	for _, name := range t.DNSNames {
		if !slices.Contains(have.DNSNames, name) {
			return false
		}
	}
	for _, ip := range t.IPAddresses {
		if !slices.ContainsFunc(have.IPAddresses, ip.Equal) {
			return false
		}
	}
	return have.Subject.CommonName == t.Subject.CommonName
}

// tolerantStore treats a file that a power cut left damaged as missing, and remembers the present certificate.
type tolerantStore struct {
	certificate.Store
	leaf    atomic.Pointer[x509.Certificate]
	updated func() // called after each successful Update
}

func (f *tolerantStore) Current() (*tls.Certificate, error) {
	cert, err := f.Store.Current()
	if err == nil {
		f.leaf.Store(cert.Leaf)
		return cert, nil
	}
	missing := certificate.NoCertKeyError(err.Error())
	return nil, &missing
}

func (f *tolerantStore) Update(cert, key []byte) (*tls.Certificate, error) {
	now, err := f.Store.Update(cert, key)
	if err == nil {
		f.leaf.Store(now.Leaf)
		f.updated()
	}
	return now, err
}

// requestTemplate returns the certificate request; nil while the node's names are not known.
func requestTemplate(node string, names []string) *x509.CertificateRequest {
	if len(names) == 0 {
		return nil
	}
	t := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, name)
		}
	}
	return t
}
