package render

import (
	_ "embed" // the manifest
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/frond-edge/frond/api/names"
	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/toolchain"
)

const (
	// clusterDNS is the address of the Service kube-dns: the tenth of serviceCIDR, as everywhere.
	clusterDNS    = "10.96.0.10"
	clusterDomain = "cluster.local"
)

// servicesManifest is CoreDNS as a DaemonSet, and a Service that routes each pod to the CoreDNS of its own gateway.
//
//go:embed services.yaml
var servicesManifest string

// ServicesObjects fills in the manifest. CoreDNS is mounted from the host's cache of programs as a volume: an image of its own would
// have to be imported once per gateway.
func ServicesObjects(p toolchain.Paths) string {
	return strings.NewReplacer(
		"CLUSTER_DNS", clusterDNS, "CLUSTER_DOMAIN", clusterDomain, "IMAGE", toolchain.ImageTools, "PROGRAM_DIR", filepath.Dir(p.CoreDNS),
	).Replace(servicesManifest)
}

// ProxyHealth is the health address of kube-proxy inside its gateway, upstream's default.
const ProxyHealth = "127.0.0.1:10256"

// writeProxy writes the files of a gateway's kube-proxy. As a process of the machine it authenticates to the local API with the node's
// own certificate; in a pod it would have a token. Pods of a gateway are on one bridge, where a reply would reach the client without
// passing the node, hence masqueradeAll. Connection tracking belongs to the host and is not changed.
func writeProxy(l folder.Layout, s folder.State, clusterCA, edge string, serving pki.Pair) error {
	e := l.Gateway(edge)
	if err := writeKubeconfig(e.ProxyKubeconfig(), "https://"+folder.Loopback(s.Ports[edge+"-api"]), clusterCA, certificateUser(serving)); err != nil {
		return err
	}
	return folder.WriteFile(e.ProxyConfig(), fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: %s
clientConnection: {kubeconfig: %q}
healthzBindAddress: %s
metricsBindAddress: 127.0.0.1:10249
nftables: {masqueradeAll: true}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, edge, e.ProxyKubeconfig(), ProxyHealth), 0o600)
}

// metricsServerManifest has the RBAC rules of upstream's manifests. The Service routes to the process on this host.
//
//go:embed metrics-server.yaml
var metricsServerManifest string

// MetricsServerFlags returns the flags. All nodes are gateways here, so metrics-server scrapes each through the cloudcores.
func MetricsServerFlags(l folder.Layout, ports map[string]int) []string {
	p, kubeconfig := l.PKIDir(), l.Path(folder.MetricsServer+".kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(ports[folder.MetricsServer]),
		"--tls-cert-file=" + p + "/metrics-server.crt", "--tls-private-key-file=" + p + "/metrics-server.key",
		"--kubelet-preferred-address-types=" + names.AddressMetrics,
		"--kubelet-port=" + strconv.Itoa(ports["scrape"]),
		"--kubelet-certificate-authority=" + p + "/egress-ca.crt",
		"--kubelet-request-timeout=5s",
		"--metric-resolution=10s", // the minimum it accepts
	}
}

// WriteMetricsServer writes the kubeconfig, the certificates and the manifest of metrics-server.
func WriteMetricsServer(l folder.Layout, s folder.State) error {
	if s.Spec.NoMetrics {
		return nil
	}
	ca, err := pki.NewAuthority(l.PKIDir(), "ca")
	if err != nil {
		return err
	}
	if _, err := ca.Issue(folder.MetricsServer, pki.Subject{Name: folder.MetricsServer, Hosts: []string{"127.0.0.1", "metrics-server.kube-system.svc"}}); err != nil {
		return err
	}
	pem, err := os.ReadFile(ca.Cert)
	if err != nil {
		return fmt.Errorf("read authority: %w", err)
	}
	manifest := strings.NewReplacer("CA_BUNDLE", base64.StdEncoding.EncodeToString(pem), "PORT", strconv.Itoa(s.Ports[folder.MetricsServer])).
		Replace(metricsServerManifest)
	if err := folder.WriteFile(l.Path(folder.MetricsServer+".yaml"), []byte(manifest), 0o600); err != nil {
		return err
	}
	return writeKubeconfig(l.Path(folder.MetricsServer+".kubeconfig"), "https://"+folder.Loopback(s.Ports["apiserver"]), ca.Cert,
		clientcmdapi.AuthInfo{TokenFile: l.Path(folder.MetricsServer + ".token")})
}
