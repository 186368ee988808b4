package edgenode

import (
	"context"
	"sync"
	"time"
)

const (
	// servingHoldTimeout is how long a call from the cloud waits for the kubelet's serving certificate at a time. cloudcore takes a node that
	// has not answered for 2.5 s for silent, and a slow link takes its part of that.
	servingHoldTimeout = time.Second
	// servingGracePeriod is how long after the first call that found no certificate the node refuses calls. Afterwards they are let through
	// to what certificate there is: an apiserver that verifies none gets its answer where nobody signs any.
	servingGracePeriod = time.Minute
)

// certificateSource is a kubelet that may still wait for its serving certificate.
type certificateSource interface {
	// AwaitServingCertificate returns nil once callers are shown what they can verify, or ctx's error.
	AwaitServingCertificate(ctx context.Context) error
}

// servingGate holds calls of the kubelet's port back until the kubelet has its serving certificate: before that it shows one that
// nobody can verify, and the user of kubectl reads of x509 what a second later is well.
type servingGate struct {
	// kubelet is the one of this process; nil while, or where, there is none.
	kubelet func() certificateSource

	mu sync.Mutex
	// missing, guarded by mu, is when a call first found no certificate; zero while none has since there was one.
	missingSince time.Time
}

// awaitCertificate waits for the certificate and returns "", or why the call is to be refused for now.
func (g *servingGate) awaitCertificate(ctx context.Context) (refusal string) {
	kubelet := g.kubelet()
	if kubelet == nil {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, servingHoldTimeout)
	defer cancel()
	err := kubelet.AwaitServingCertificate(ctx)
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
