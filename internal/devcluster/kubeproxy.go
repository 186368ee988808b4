package devcluster

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/daemon"
	"github.com/frond-edge/frond/internal/devcluster/pki"
	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// proxyHealth is the health address of kube-proxy inside its gateway, upstream's default.
const proxyHealth = "127.0.0.1:10256"

// ErrMissingNft names the program that kube-proxy lacks on this machine.
var ErrMissingNft = errors.New("kube-proxy needs the program nft: apt-get install nftables")

// checkNft checks for the program that kube-proxy calls, if the spec has kube-proxy.
func (s Spec) checkNft() error {
	if !s.KubeProxy {
		return nil
	}
	if s.Runtime != Containerd {
		return errors.New("--services and --kube-proxy need gateways with a network of their own: use --runtime containerd, as root")
	}
	if _, err := exec.LookPath("nft"); err != nil {
		return ErrMissingNft
	}
	return nil
}

// kubeProxyComponent is the kube-proxy of a gateway: upstream's, with the gateway's own API as its only API.
func (c *Cluster) kubeProxyComponent(edge string, i int) component {
	return component{
		name: fmt.Sprintf("proxy-%d", i), stage: stageEdge, edge: edge, inMountNamespace: true, grace: 2 * time.Second,
		command: daemon.Command{Path: c.layout.programFile("kube-proxy"), Args: []string{"--config=" + c.layout.edgeFiles(edge).proxyConfig()}},
		ready: func(ctx context.Context) error {
			conn, err := wan.Dial(ctx, c.wanNetwork().Namespace(edge), proxyHealth)
			if err != nil {
				return err
			}
			return conn.Close()
		},
	}
}

func (c *Cluster) kubeProxyName(edge string) string {
	return "proxy-" + strings.TrimPrefix(edge, "edge-")
}

// writeProxy writes the files of a gateway's kube-proxy. As a process of the machine it authenticates to the local API with the node's
// own certificate; in a pod it would have a token. Pods of a gateway are on one bridge, where a reply would reach the client without
// passing the node, hence masqueradeAll. Connection tracking belongs to the host and is not changed.
func writeProxy(l clusterLayout, s clusterState, clusterCA, edge string, serving pki.Pair) error {
	e := l.edgeFiles(edge)
	if err := writeKubeconfig(e.proxyKubeconfig(), "https://"+loopbackAddress(s.Ports[edge+"-api"]), clusterCA, serving); err != nil {
		return err
	}
	return writeFile(e.proxyConfig(), fmt.Appendf(nil, `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: %s
clientConnection: {kubeconfig: %q}
healthzBindAddress: %s
metricsBindAddress: 127.0.0.1:10249
nftables: {masqueradeAll: true}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`, edge, e.proxyKubeconfig(), proxyHealth), 0o600)
}
