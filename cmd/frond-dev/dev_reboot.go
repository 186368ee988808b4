package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/cli"
	"github.com/frond-edge/frond/internal/devcluster"
)

type rebootCommand struct {
	*cluster
	output cli.Output
	how    devcluster.Reboot
}

func newReboot(c *cluster) *cobra.Command {
	r := &rebootCommand{cluster: c}
	cmd := &cobra.Command{
		Use:   "reboot EDGE",
		Short: "Simulate a power cycle of a gateway; reports when all its pods run again",
		Long: `Simulate a power cycle of a gateway. All its processes are killed, containers included, and what a machine
loses in a reboot is lost: mounts, sockets, cgroups, network namespaces. The time counts from the runtime being ready.
With --offline the link is cut before and stays cut: frond dev heal brings it back.`,
		Args: cobra.ExactArgs(1),

		ValidArgsFunction: c.completePart,
		RunE: func(cmd *cobra.Command, args []string) error {
			return r.Run(cmd.Context(), args[0], cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&r.how.Offline, "offline", false, "cut the link first")
	cmd.Flags().DurationVar(&r.how.Timeout, "timeout", 0, "how long to wait for the pods (default 3m)")
	r.output.AddFlag(cmd)
	return cmd
}

// Run reboots a gateway and prints how long it took.
func (r *rebootCommand) Run(ctx context.Context, edge string, out, talk io.Writer) error {
	dev, err := r.openCluster(talk)
	if err != nil {
		return err
	}
	result, err := dev.Reboot(ctx, edge, r.how)
	if err != nil {
		return err
	}
	if r.output.JSON() {
		return cli.PrintJSON(out, result)
	}
	_, err = fmt.Fprintf(out, "%d pods of %s run again %.1f s after its runtime was ready\n", result.Pods, edge, result.Running)
	return err
}
