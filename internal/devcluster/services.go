package devcluster

import (
	"context"
	_ "embed" // the manifest
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/wan"
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

// servicesObjects fills in the manifest. CoreDNS is mounted from the host's cache of programs as a volume: an image of its own would
// have to be imported once per gateway.
func servicesObjects(p toolchain.Paths) string {
	return strings.NewReplacer(
		"CLUSTER_DNS", clusterDNS, "CLUSTER_DOMAIN", clusterDomain, "IMAGE", toolchain.ImageTools, "PROGRAM_DIR", filepath.Dir(p.CoreDNS),
	).Replace(servicesManifest)
}

// installServices creates CoreDNS in Kubernetes.
func (c *Cluster) installServices(ctx context.Context) error {
	if !c.state.Spec.Services {
		return nil
	}
	_, err := c.Kubectl(ctx, servicesObjects(c.state.Programs), "apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-")
	if err != nil {
		return fmt.Errorf("install CoreDNS: %w", err)
	}
	return nil
}

// awaitServices waits until CoreDNS answers on each gateway, and routes the addresses of pods between gateways.
func (c *Cluster) awaitServices(ctx context.Context) error {
	if !c.state.Spec.Services {
		return nil
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.coreDNSReady(ctx)
		if err == nil {
			err = c.routePods(ctx)
		}
		if err == nil {
			c.logProgress("names of Services are resolved")
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("CoreDNS is not ready: %w (%w): kubectl -n kube-system describe pods -l k8s-app=kube-dns", err, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// coreDNSReady returns nil when the DaemonSet of this generation has a Ready pod on each gateway.
func (c *Cluster) coreDNSReady(ctx context.Context) error {
	var set struct {
		Metadata struct {
			Generation int64 `json:"generation"`
		} `json:"metadata"`
		Status struct {
			ObservedGeneration int64 `json:"observedGeneration"`
			Updated            int   `json:"updatedNumberScheduled"`
			Ready              int   `json:"numberReady"`
		} `json:"status"`
	}
	if err := c.requestComponent(ctx, kubeClient, "apiserver", "/apis/apps/v1/namespaces/kube-system/daemonsets/coredns", &set); err != nil {
		return err
	}
	if set.Status.ObservedGeneration < set.Metadata.Generation || min(set.Status.Updated, set.Status.Ready) < c.state.Spec.Edges {
		return fmt.Errorf("%w: %d of %d pods", errNotReady, min(set.Status.Updated, set.Status.Ready), c.state.Spec.Edges)
	}
	return nil
}

// routePods makes the wan forward between the pods of gateways, as Kubernetes expects of a cluster's network.
func (c *Cluster) routePods(ctx context.Context) error {
	routes := map[string]string{}
	for i, edge := range numberedNames("edge", c.state.Spec.Edges) {
		subnet, err := podNetworkSubnet(filepath.Join(c.layout.edgeFiles(edge).podNetworkDir(), podNetworkFile))
		if err != nil {
			return err
		}
		routes[subnet] = wan.Address(i + 1)
	}
	return c.wanNetwork().Route(ctx, routes)
}
