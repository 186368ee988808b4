package devcluster

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/frond-edge/frond/internal/install"
)

// tokenLife is the lifetime of the certificates of Kubernetes here.
const tokenLife = 10 * 365 * 24 * time.Hour

// writeTokens gives each gateway a join token, for its own name and reusable after each wipe of its disk.
func (c *Cluster) writeTokens(ctx context.Context) error {
	for _, edge := range numberedNames("edge", c.state.Spec.Edges) {
		file := c.layout.edgeFiles(edge).tokenFile()
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
