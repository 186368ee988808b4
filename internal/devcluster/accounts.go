package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/frond-edge/frond/api/identity"
	"github.com/frond-edge/frond/api/kubeversion"
	"github.com/frond-edge/frond/deploy/rbac"
	"github.com/frond-edge/frond/internal/devcluster/pki"
)

// cloudcoreToken returns the file with the token of cloudcore's service account.
func cloudcoreToken(l clusterLayout) string { return l.path("cloudcore.token") }

// writeCloudcore writes the kubeconfig of the cloudcores. Their rights are those of deploy/rbac, as in any installation.
func writeCloudcore(l clusterLayout, ports map[string]int, ca *pki.Authority) error {
	k := newKubeconfig("https://" + loopbackAddress(ports["apiserver"]))
	k.Users[0].User.TokenFile = cloudcoreToken(l)
	return k.write(l.path("cloudcore.kubeconfig"), map[string]*string{ca.Cert: &k.Clusters[0].Cluster.CA})
}

// installAccounts creates the service accounts of the components outside Kubernetes, and fetches their tokens.
func (c *Cluster) installAccounts(ctx context.Context) error {
	return errors.Join(c.applyInstall(ctx), c.allowImpersonation(ctx), c.installMetricsServer(ctx), c.installServices(ctx),
		c.writeAccountToken(ctx, "cloudcore", identity.Namespace, cloudcoreToken(c.layout)))
}

// allowImpersonation grants cloudcore the rights that it needs where constrained impersonation is missing.
func (c *Cluster) allowImpersonation(ctx context.Context) error {
	if kubeversion.ImpersonationOf(c.state.Spec.Kubernetes) != kubeversion.Classic {
		return nil
	}
	if _, err := c.Kubectl(ctx, rbac.ClassicImpersonation(), "apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-"); err != nil {
		return fmt.Errorf("allow impersonation: %w", err)
	}
	return nil
}

// writeAccountToken fetches a token of a service account and writes it to a file.
func (c *Cluster) writeAccountToken(ctx context.Context, account, namespace, tokenFile string) error {
	token, err := c.Kubectl(ctx, "", "create", "token", account, "--namespace="+namespace, "--duration=87600h") // ten years, as the certificates
	if err != nil {
		return fmt.Errorf("token of %s: %w", account, err)
	}
	return writeFile(filepath.Clean(tokenFile), []byte(strings.TrimSpace(token)), 0o600)
}

// installMetricsServer creates the objects of metrics-server and fetches its token.
func (c *Cluster) installMetricsServer(ctx context.Context) error {
	if c.state.Spec.NoMetrics {
		return nil
	}
	manifest, err := os.ReadFile(c.layout.path(metricsServer + ".yaml"))
	if err != nil {
		return fmt.Errorf("install metrics-server: %w", err)
	}
	if _, err := c.Kubectl(ctx, string(manifest), "apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-"); err != nil {
		return fmt.Errorf("install metrics-server: %w", err)
	}
	return c.writeAccountToken(ctx, metricsServer, "kube-system", c.layout.path(metricsServer+".token"))
}
