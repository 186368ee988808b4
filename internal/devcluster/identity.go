package devcluster

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/deploy/crd"
)

// identityConfig is how a cloudcore lets gateways in. They keep the URLs that they have, which lead through the WAN.
func identityConfig(l layout) config.Identity {
	return config.Identity{
		IssuerSeedFile: l.seed("issuer"), AuthNkeyFile: l.seed(calloutUser), SysNkeyFile: l.seed(kickerUser), Cells: cells,
		HubCAFile: l.in("nats", "ca.crt"), ClusterCAFile: filepath.Join(l.pki(), "ca.crt"),
	}
}

// installKinds tells Kubernetes of Frond's kinds.
func (c *Cluster) installKinds(ctx context.Context) error {
	definitions, err := crd.Definitions()
	if err != nil {
		return err
	}
	for _, definition := range definitions {
		if _, err := c.Kubectl(ctx, strings.TrimPrefix(string(definition), "---\n"), "apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-"); err != nil {
			return fmt.Errorf("install kinds: %w", err)
		}
	}
	return nil
}
