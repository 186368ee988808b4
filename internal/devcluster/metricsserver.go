package devcluster

import (
	"context"
	_ "embed" // the manifest
	"encoding/base64"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/frond-edge/frond/api/wire"
	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/devcluster/pki"
)

// metricsServer is the name of the process, its port and its files.
const metricsServer = "metrics-server"

// metricsServerManifest has the RBAC rules of upstream's manifests. The Service routes to the process on this host.
//
//go:embed metrics-server.yaml
var metricsServerManifest string

// metricsServerFlags returns the flags. All nodes are gateways here, so metrics-server scrapes each through the cloudcores.
func metricsServerFlags(l clusterLayout, ports map[string]int) []string {
	p, kubeconfig := l.pkiDir(), l.path(metricsServer+".kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(ports[metricsServer]),
		"--tls-cert-file=" + p + "/metrics-server.crt", "--tls-private-key-file=" + p + "/metrics-server.key",
		"--kubelet-preferred-address-types=" + wire.AddressMetrics,
		"--kubelet-port=" + strconv.Itoa(ports["scrape"]),
		"--kubelet-certificate-authority=" + p + "/egress-ca.crt",
		"--kubelet-request-timeout=5s",
		"--metric-resolution=10s", // the minimum it accepts
	}
}

// metricsServerComponent is upstream's metrics-server, with a token of its service account as in a pod.
func (c *Cluster) metricsServerComponent() component {
	return component{
		name: metricsServer, stage: stageControl, grace: 5 * time.Second, ports: []string{metricsServer},
		command: daemon.Command{Path: c.layout.programFile(metricsServer), Args: metricsServerFlags(c.layout, c.state.Ports)},
		ready: func(ctx context.Context) error {
			return c.requestComponent(ctx, kubeClient, metricsServer, "/livez", nil)
		},
	}
}

// writeMetricsServer writes the kubeconfig, the certificates and the manifest of metrics-server.
func writeMetricsServer(l clusterLayout, s clusterState) error {
	if s.Spec.NoMetrics {
		return nil
	}
	ca, err := pki.NewAuthority(l.pkiDir(), "ca")
	if err != nil {
		return err
	}
	if _, err := ca.Issue(metricsServer, pki.Subject{Name: metricsServer, Hosts: []string{"127.0.0.1", "metrics-server.kube-system.svc"}}); err != nil {
		return err
	}
	pem, err := os.ReadFile(ca.Cert)
	if err != nil {
		return fmt.Errorf("read authority: %w", err)
	}
	manifest := strings.NewReplacer("CA_BUNDLE", base64.StdEncoding.EncodeToString(pem), "PORT", strconv.Itoa(s.Ports[metricsServer])).
		Replace(metricsServerManifest)
	if err := writeFile(l.path(metricsServer+".yaml"), []byte(manifest), 0o600); err != nil {
		return err
	}
	k := newKubeconfig("https://" + loopbackAddress(s.Ports["apiserver"]))
	k.Users[0].User.TokenFile = l.path(metricsServer + ".token")
	return k.write(l.path(metricsServer+".kubeconfig"), map[string]*string{ca.Cert: &k.Clusters[0].Cluster.CA})
}
