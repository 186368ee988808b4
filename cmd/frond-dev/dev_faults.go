package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/devcluster"
)

// newFault returns a command that acts on one component or gateway.
func newFault(c *cluster, use, short string, action func(*devcluster.Cluster, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1), ValidArgsFunction: c.completePart,
		RunE: func(cmd *cobra.Command, args []string) error {
			dev, err := c.openCluster(cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			return action(dev, cmd.Context(), args[0])
		},
	}
}

func newCut(c *cluster) *cobra.Command {
	loud := false
	cmd := newFault(c, "cut EDGE", "Lose every packet between a gateway and the cloud", func(dev *devcluster.Cluster, ctx context.Context, edge string) error {
		return dev.Cut(ctx, edge, loud)
	})
	cmd.Flags().BoolVar(&loud, "loud", false, "let both ends detect it at once, instead of silently")
	return cmd
}
