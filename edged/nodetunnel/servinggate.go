package nodetunnel

import (
	"context"
	"sync"
	"time"
)

const (
	// servingHoldTimeout is how long a call from the cloud waits for the kubelet's serving certificate at a time. cloudcore
	// treats a node that has not answered for 2.5 s as silent, and a slow link uses part of that.
	servingHoldTimeout = time.Second
	// servingGracePeriod is how long after the first call that found no certificate the node refuses calls. Afterwards they
	// pass with any certificate there is: if no signer is active, an apiserver that verifies none still gets its answer.
	servingGracePeriod = time.Minute
)

// CertificateSource is a kubelet that may still wait for its serving certificate.
type CertificateSource interface {
	// Await returns nil once callers get a certificate that they can verify, or ctx's error.
	Await(ctx context.Context) error
}

// ServingGate delays calls of the kubelet's port until the kubelet has its serving certificate. Before that its certificate
// cannot be verified, and the user of kubectl would get an x509 error that is gone a second later.
type ServingGate struct {
	certificate CertificateSource

	mu sync.Mutex
	// missingSince is when a call first found no certificate; zero if none has since there was one. Guarded by mu.
	missingSince time.Time
}

// NewServingGate returns the gate in front of a kubelet.
func NewServingGate(certificate CertificateSource) *ServingGate {
	return &ServingGate{certificate: certificate}
}

// awaitCertificate waits for the certificate and returns "", or the reason why the call is refused for now.
func (g *ServingGate) awaitCertificate(ctx context.Context) (refusal string) {
	ctx, cancel := context.WithTimeout(ctx, servingHoldTimeout)
	defer cancel()
	err := g.certificate.Await(ctx)
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil {
		g.missingSince = time.Time{}
		return ""
	}
	if g.missingSince.IsZero() {
		g.missingSince = time.Now()
	}
	if time.Since(g.missingSince) > servingGracePeriod {
		return ""
	}
	return "the kubelet has no valid serving certificate yet: see whether its CertificateSigningRequest is approved and issued (kubectl get csr)"
}
