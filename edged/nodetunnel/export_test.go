package nodetunnel

import (
	"context"
	"net/netip"
)

// AdmitPodTarget checks whether the cloud may reach an address.
func AdmitPodTarget(ctx context.Context, cfg Config, to netip.AddrPort) error {
	return podDialer{cfg}.admitTarget(ctx, to)
}

// AwaitCertificate waits for the certificate and returns "", or why a call is refused.
func (g *ServingGate) AwaitCertificate(ctx context.Context) string { return g.awaitCertificate(ctx) }
