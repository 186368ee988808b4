package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/devcluster"
)

// faultCommand is a command that acts on one component or gateway.
type faultCommand struct {
	*cluster
	action func(ctx context.Context, dev *devcluster.Cluster, what string) error
}

// Run applies the fault to the component or gateway named what.
func (f *faultCommand) Run(ctx context.Context, what string, talk io.Writer) error {
	dev, err := f.openCluster(talk)
	if err != nil {
		return err
	}
	return f.action(ctx, dev, what)
}

func (f *faultCommand) newCommand(use, short string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: f.completePart,
		RunE: func(cmd *cobra.Command, args []string) error { return f.Run(cmd.Context(), args[0], cmd.ErrOrStderr()) },
	}
}

func newCut(c *cluster) *cobra.Command {
	loud := false
	f := &faultCommand{cluster: c, action: func(ctx context.Context, dev *devcluster.Cluster, what string) error {
		return dev.Cut(ctx, what, loud)
	}}
	cmd := f.newCommand("cut EDGE", "Lose every packet between a gateway and the cloud")
	cmd.Flags().BoolVar(&loud, "loud", false, "let both ends detect it at once, instead of silently")
	return cmd
}

func newHeal(c *cluster) *cobra.Command {
	f := &faultCommand{cluster: c, action: func(ctx context.Context, dev *devcluster.Cluster, what string) error {
		return dev.Heal(ctx, what)
	}}
	return f.newCommand("heal EDGE", "Undo cut")
}

func newKill(c *cluster) *cobra.Command {
	f := &faultCommand{cluster: c, action: func(ctx context.Context, dev *devcluster.Cluster, what string) error {
		return dev.Kill(ctx, what)
	}}
	return f.newCommand("kill PART", "Kill a part as a crash would (cloudcore-1, hub-2, edge-1, containerd-1, apiserver …)")
}

func newStart(c *cluster) *cobra.Command {
	f := &faultCommand{cluster: c, action: func(ctx context.Context, dev *devcluster.Cluster, what string) error {
		return dev.Start(ctx, what)
	}}
	return f.newCommand("start PART", "Start a part that was killed, and wait until it is ready")
}
