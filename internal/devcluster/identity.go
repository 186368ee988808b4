package devcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/frond-edge/frond/api/config"
	"github.com/frond-edge/frond/deploy/crd"
	"github.com/frond-edge/frond/internal/install"
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

// tokenLife is that of the certificates here.
const tokenLife = 10 * 365 * 24 * time.Hour

// writeTokens gives each gateway a token to join with, for its own name and as often as its disk is wiped.
func (c *Cluster) writeTokens(ctx context.Context) error {
	for _, edge := range numbered("edge", c.state.Spec.Edges) {
		file := c.layout.edge(edge).token()
		if _, err := os.Stat(file); err == nil {
			continue
		}
		token, secret, err := install.NewToken(install.TokenOptions{TTL: tokenLife, Node: edge, Description: "frond dev"}, time.Now())
		if err != nil {
			return err
		}
		manifest, err := json.Marshal(secret)
		if err != nil {
			return fmt.Errorf("token of %s: %w", edge, err)
		}
		if _, err := c.Kubectl(ctx, string(manifest), "create", "-f", "-"); err != nil {
			return fmt.Errorf("token of %s: %w", edge, err)
		}
		if err := writeFile(file, []byte(token), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// hubHash is how gateways know the hub's CA.
func hubHash(l layout) (string, error) {
	ca, err := os.ReadFile(l.in("nats", "ca.crt"))
	if err != nil {
		return "", fmt.Errorf("read the hub's CA: %w", err)
	}
	return install.CAHash(ca)
}
