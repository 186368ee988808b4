package main

import (
	"context"
	"errors"
	"io"

	"github.com/spf13/cobra"
)

type status struct {
	*cluster
	output output
}

func newStatus(c *cluster) *cobra.Command {
	s := &status{cluster: c}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show each part and each gateway; fails unless all are ready",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.Run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	s.output.add(cmd)
	return cmd
}

// Run prints the status.
func (s *status) Run(ctx context.Context, out, talk io.Writer) error {
	asJSON, err := s.output.json()
	if err != nil {
		return err
	}
	dev, err := s.open(talk)
	if err != nil {
		return err
	}
	now := dev.Status(ctx)
	if asJSON {
		err = printJSON(out, now)
	} else {
		err = now.Print(out)
	}
	if err == nil && !now.Ready() {
		err = errors.New("not all parts are ready; frond dev logs PART tells more, frond dev up starts what is down")
	}
	return err
}
