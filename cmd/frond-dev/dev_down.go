package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
)

type downCommand struct {
	*cluster
	keep bool
}

func newDown(c *cluster) *cobra.Command {
	d := &downCommand{cluster: c}
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Stop the cluster and remove all of it",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return d.Run(cmd.Context(), cmd.ErrOrStderr()) },
	}
	cmd.Flags().BoolVar(&d.keep, "keep", false, "keep the logs")
	return cmd
}

// Run removes the cluster.
func (d *downCommand) Run(ctx context.Context, talk io.Writer) error {
	dev, err := d.openCluster(talk)
	if err != nil {
		return err
	}
	return dev.Down(ctx, d.keep)
}
