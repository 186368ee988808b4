package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/frond-edge/frond/internal/cli"
)

type devStatusCommand struct {
	*cluster
	output cli.Output
}

func newStatus(c *cluster) *cobra.Command {
	s := &devStatusCommand{cluster: c}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each part and each gateway; fails unless all are ready",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	s.output.AddFlag(cmd)
	return cmd
}

// Run prints the status.
func (s *devStatusCommand) Run(ctx context.Context, out, talk io.Writer) error {
	dev, err := s.openCluster(talk)
	if err != nil {
		return err
	}
	now := dev.Status(ctx)
	if s.output.JSON() {
		err = cli.PrintJSON(out, now)
	} else {
		err = now.Print(out)
	}
	if err == nil && !now.Ready() {
		err = errors.New("not all parts are ready; frond dev logs PART tells more, frond dev up starts what is down")
	}
	return err
}
