package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/devcluster"
	"github.com/frond-edge/frond/internal/toolchain"
)

// cluster is the flag that every dev command shares.
type cluster struct{ dir string }

func (c *cluster) openCluster(talk io.Writer) (*devcluster.Cluster, error) {
	dev, err := devcluster.Open(c.dir, talk)
	if errors.Is(err, devcluster.ErrNoCluster) {
		return nil, fmt.Errorf("%w: start one with frond dev up --dir %s", err, c.dir)
	}
	return dev, err
}

func newRoot() *cobra.Command {
	shared := &cluster{}
	cmd := &cobra.Command{
		Use:   "frond-dev",
		Short: "Run a complete Frond cluster on this machine",
		Long: `Run a complete Frond cluster on this machine: a Kubernetes control plane, a NATS hub, cloudcores and gateways, each part real.
With root, each gateway has containerd and a network namespace of its own; without, pods are only acted out.`,
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "frond dev"}, // frond dev ARGS runs frond-dev ARGS
	}
	cmd.PersistentFlags().StringVar(&shared.dir, "dir", ".frond", "folder of the cluster")
	cmd.AddCommand(newUp(shared), newDown(shared), newStatus(shared), newCut(shared),
		newFault(shared, "heal EDGE", "Undo cut", (*devcluster.Cluster).Heal),
		newFault(shared, "kill PART", "Kill a part as a crash would (cloudcore-1, hub-2, edge-1, containerd-1, apiserver …)", (*devcluster.Cluster).Kill),
		newFault(shared, "start PART", "Start a part that was killed, and wait until it is ready", (*devcluster.Cluster).Start),
		newReboot(shared), newLogs(shared), newStore(shared), newExec(shared), newDevice(shared), newDemo(shared), newWan(), newSensor())
	return cmd
}

// findPrograms builds what a cluster of this spec runs. file, if given, names the programs instead, as JSON.
func findPrograms(file string, out io.Writer) func(context.Context, devcluster.Spec) (toolchain.Paths, error) {
	return func(ctx context.Context, spec devcluster.Spec) (toolchain.Paths, error) {
		if file == "" {
			return toolchain.Ensure(ctx, toolchain.Request{
				Kube: true, ControlPlane: spec.Kubernetes, Nats: true, Frond: true, Node: spec.Runtime == devcluster.Containerd, DNS: spec.Services,
			}, out)
		}
		var p toolchain.Paths
		data, err := os.ReadFile(file)
		if err != nil {
			return p, fmt.Errorf("read programs: %w", err)
		}
		if err := json.Unmarshal(data, &p); err != nil {
			return p, fmt.Errorf("read programs %s: %w", file, err)
		}
		return p, nil
	}
}

// completePart completes the name of a component, as the first argument; edge-1 is the edgecore of a gateway.
func (c *cluster) completePart(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	dev, err := c.openCluster(io.Discard)
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return dev.Components(), cobra.ShellCompDirectiveNoFileComp
}
