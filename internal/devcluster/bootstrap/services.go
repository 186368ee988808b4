package bootstrap

import (
	"context"
	"fmt"
	"time"

	"github.com/frond-edge/frond/internal/devcluster/folder"
	"github.com/frond-edge/frond/internal/devcluster/process"
	"github.com/frond-edge/frond/internal/devcluster/render"
	"github.com/frond-edge/frond/internal/devcluster/request"
	"github.com/frond-edge/frond/internal/devcluster/wan"
)

// installServices creates CoreDNS in Kubernetes.
func (in *Installer) installServices(ctx context.Context) error {
	if !in.f.State.Spec.Services {
		return nil
	}
	_, err := Kubectl(ctx, in.f.Layout, render.ServicesObjects(in.f.State.Programs), "apply", "--server-side", "--force-conflicts", "--validate=false", "-f", "-")
	if err != nil {
		return fmt.Errorf("install CoreDNS: %w", err)
	}
	return nil
}

// AwaitServices waits until CoreDNS answers on each gateway, and routes the addresses of pods between gateways.
func (in *Installer) AwaitServices(ctx context.Context) error {
	if !in.f.State.Spec.Services {
		return nil
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := in.coreDNSReady(ctx)
		if err == nil {
			err = in.routePods(ctx)
		}
		if err == nil {
			in.f.Logf("names of Services are resolved")
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
func (in *Installer) coreDNSReady(ctx context.Context) error {
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
	if err := request.Component(ctx, in.f, request.Kube, "apiserver", "/apis/apps/v1/namespaces/kube-system/daemonsets/coredns", &set); err != nil {
		return err
	}
	if set.Status.ObservedGeneration < set.Metadata.Generation || min(set.Status.Updated, set.Status.Ready) < in.f.State.Spec.Edges {
		return fmt.Errorf("%w: %d of %d pods", process.ErrNotReady, min(set.Status.Updated, set.Status.Ready), in.f.State.Spec.Edges)
	}
	return nil
}

// routePods makes the wan forward between the pods of gateways, as Kubernetes expects of a cluster's network.
func (in *Installer) routePods(ctx context.Context) error {
	routes := map[string]string{}
	for i, edge := range folder.Names("edge", in.f.State.Spec.Edges) {
		subnet, err := render.PodNetworkSubnet(in.f.Layout.Gateway(edge))
		if err != nil {
			return err
		}
		routes[subnet] = wan.Address(i + 1)
	}
	return in.f.Network().Route(ctx, routes)
}
